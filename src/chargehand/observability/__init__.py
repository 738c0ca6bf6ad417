"""Logs, metrics and traces for operators. None of them ever shows a secret."""
