"""Payloads of a store as its settings want them, and where large ones stand outside of Redis."""
