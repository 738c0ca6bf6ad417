"""Webhooks, out and in: two directions that share nothing but the signature."""
