-- The version of the schema. Both databases say this in the same words.

-- name: schema_version
SELECT COALESCE(MAX(m.version), 0) FROM schema_migrations m;

-- Since version 9.
-- name: schema
SELECT COALESCE(MAX(m.version), 0), COALESCE(MAX(COALESCE(m.oldest, m.version)), 0) FROM schema_migrations m;

-- name: record_migration
INSERT INTO schema_migrations (version, name, applied_at) VALUES (:version, :name, :now);

-- name: record_expansion
INSERT INTO schema_migrations (version, name, applied_at, oldest) VALUES (:version, :name, :now, :oldest);
