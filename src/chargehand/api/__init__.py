"""The engine's own API: jobs of all doors, work for remote workers, queues, deliveries. The console and the CLI use it."""
