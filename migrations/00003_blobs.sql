-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- What is too large for documents, such as the code of functions, by its SHA-256.
CREATE TABLE blobs (
    digest text COLLATE "C" PRIMARY KEY,
    at     timestamptz NOT NULL, -- when it was last put
    data   bytea       NOT NULL
);
-- Code is compressed badly, and read whole.
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;
