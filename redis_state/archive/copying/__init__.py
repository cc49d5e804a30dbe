"""The copying of what has ended: read in Redis, written to the archive, verified, marked."""
