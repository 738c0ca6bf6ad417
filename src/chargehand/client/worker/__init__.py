"""A worker of tasks: it claims them, runs a function for each, keeps the leases, and reports how they ended."""
