"""A session's updates to any number of HTTP clients: one watch, each new row encoded once."""
