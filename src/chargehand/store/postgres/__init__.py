"""PostgreSQL: many nodes, each with a pool of connections."""
