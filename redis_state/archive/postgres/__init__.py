"""The archive in PostgreSQL. Needs the extra ``postgres``."""
