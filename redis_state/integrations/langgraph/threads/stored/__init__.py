"""Threads as they are stored: the names of their parts, and their values as bytes. No I/O."""
