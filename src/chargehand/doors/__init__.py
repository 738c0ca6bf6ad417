"""The doors: each takes jobs in by a wire of its own and knows nothing of the others."""
