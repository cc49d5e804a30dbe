"""Agents' sessions in Redis: their encoding, their history, and reading damaged ones."""
