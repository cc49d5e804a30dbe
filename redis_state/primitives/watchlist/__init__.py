"""The watch list: what must be inspected, when, and since when it waits for that."""
