"""What everything in PostgreSQL shares: text, connections, migrations. Needs ``postgres``."""
