"""A worker process of the pool: what it serves, what it has beside its tasks, its end."""
