"""The tasks door: a queue for pull workers, on codeQ's HTTP wire."""
