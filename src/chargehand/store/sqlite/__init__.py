"""SQLite: one process writes (`process`, `writer`), the server reads (`store`)."""
