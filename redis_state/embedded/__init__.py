"""A Redis or Valkey server of this machine's own, for development and tests."""
