"""The queue: which tasks wait for a worker, and which a worker has claimed."""
