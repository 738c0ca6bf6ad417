"""What operators see: logs and traces, neither of which ever shows a secret."""
