-- SPDX-License-Identifier: Apache-2.0

-- +goose Up

-- The registry of schemas as rows and columns, for those who ask in SQL. The records are in the table schemas.
CREATE VIEW registered_schemas AS
SELECT scope AS schema_group, name AS schema_name, d ->> 'format' AS format, d ->> 'compatibility' AS compatibility,
       d ->> 'policy' AS policy, d ->> 'description' AS description, d -> 'labels' AS labels,
       coalesce((d ->> 'deleted')::boolean, false) AS deleted, created_at, updated_at, revision
FROM (SELECT *, document::json AS d FROM schemas WHERE kind = 'schema' AND document IS NOT NULL) AS records;

CREATE VIEW schema_versions AS
SELECT split_part(scope, '/', 1) AS schema_group, split_part(scope, '/', 2) AS schema_name, name::integer AS version,
       (d ->> 'id')::integer AS id, d ->> 'state' AS state, d ->> 'format' AS format, d ->> 'dialect' AS dialect,
       d ->> 'text' AS text, d ->> 'hash' AS hash, created_at, updated_at, revision
FROM (SELECT *, document::json AS d FROM schemas WHERE kind = 'schemaversion' AND document IS NOT NULL) AS records;

CREATE VIEW schema_references AS
SELECT split_part(scope, '/', 1) AS schema_group, split_part(scope, '/', 2) AS schema_name, records.name::integer AS version,
       r ->> 'name' AS reference, r ->> 'group' AS to_group, r ->> 'schema' AS to_schema, (r ->> 'version')::integer AS to_version
FROM schemas AS records, json_array_elements(coalesce(document::json -> 'references', '[]')) AS r
WHERE kind = 'schemaversion' AND document IS NOT NULL;

CREATE VIEW schema_bindings AS
SELECT name AS event_type, document::json ->> 'group' AS schema_group, document::json ->> 'schema' AS schema_name, updated_at, revision
FROM schemas WHERE kind = 'schemabinding' AND document IS NOT NULL;
