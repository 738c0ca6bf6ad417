"""The engine's own door: jobs of any kind, work for anybody who claims it, queues, deliveries. What the console and the CLI use."""
