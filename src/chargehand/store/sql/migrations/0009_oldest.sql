-- The oldest version of the schema whose nodes may work once the migration was applied: the migration's own where nothing is said.

ALTER TABLE schema_migrations ADD COLUMN oldest INTEGER;
