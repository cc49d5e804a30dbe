"""Threads of checkpoints on Redis: what `RedisSaver` is made of."""
