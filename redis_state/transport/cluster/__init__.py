"""A Redis Cluster: one sender for each primary, and calls that follow their slots."""
