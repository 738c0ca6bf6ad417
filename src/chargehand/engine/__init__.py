"""The engine: jobs, their moves, leases and waiting. It knows no HTTP, no SQL and no door."""
