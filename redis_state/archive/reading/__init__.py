"""The reading of what Redis and the archive have, as one."""
