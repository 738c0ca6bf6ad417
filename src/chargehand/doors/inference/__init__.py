"""A gateway in front of Ollama targets: jobs, state webhooks and a transparent passthrough on one queue."""
