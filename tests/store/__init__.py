"""One conformance suite: every test that asks for `store` runs on SQLite and on PostgreSQL."""
