"""Chargehand takes jobs in, hands them to whoever can do them, and reports back."""

__version__ = "0.1.0"
