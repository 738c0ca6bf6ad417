-- The version of the schema. Both databases say this in the same words.

-- name: schema_version
SELECT COALESCE(MAX(m.version), 0) FROM schema_migrations m;

-- name: record_migration
INSERT INTO schema_migrations (version, name, applied_at) VALUES (:version, :name, :now);
