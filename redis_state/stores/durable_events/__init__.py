"""Audit events in PostgreSQL, at once or by way of Redis. Needs the extra ``postgres``."""
