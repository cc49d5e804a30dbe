"""From an address to a connection that serves: parsed, located, opened, opened again."""
