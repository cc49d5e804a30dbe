"""A session's updates to any number of HTTP clients: one watch, each frame encoded once."""
