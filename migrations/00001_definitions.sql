-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- The last revision that was given. Who writes locks its one row until the end of the transaction, so revisions become
-- visible in their order: whoever has seen one has seen all before it.
CREATE TABLE revision (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bigint  NOT NULL
);
INSERT INTO revision (last) VALUES (0);

-- A deleted definition stays as a row without a document, for those who have to hear of it.
CREATE TABLE definitions (
    kind       text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    revision   bigint           NOT NULL,
    created_at timestamptz      NOT NULL,
    updated_at timestamptz      NOT NULL,
    document   text,
    PRIMARY KEY (kind, scope, name)
);
CREATE UNIQUE INDEX definitions_revision ON definitions (revision);

-- The records of the registry of schemas are documents, too, and apart from the definitions: those every bridge holds in
-- memory and in a file.
CREATE TABLE schemas (LIKE definitions INCLUDING ALL);

CREATE TABLE audit (
    revision     bigint PRIMARY KEY,
    store        text             NOT NULL CHECK (store IN ('definitions', 'schemas')),
    at           timestamptz      NOT NULL,
    author       text             NOT NULL,
    request_id   text             NOT NULL,
    action       text             NOT NULL CHECK (action IN ('created', 'changed', 'deleted')),
    kind         text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    old_revision bigint           NOT NULL
);
CREATE INDEX audit_name ON audit (kind, name, revision);
CREATE INDEX audit_at ON audit (at);
