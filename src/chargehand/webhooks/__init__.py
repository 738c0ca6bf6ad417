"""Webhooks: the outbox that sends them, the policy for where they may go, and the signatures that receivers check."""
