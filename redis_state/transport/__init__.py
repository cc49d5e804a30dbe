"""The only part that talks to Redis: addresses, the sender, the scripts and the keys."""
