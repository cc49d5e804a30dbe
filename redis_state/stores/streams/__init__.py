"""Durable streams: rows at a path, as the Durable Streams protocol has them."""
