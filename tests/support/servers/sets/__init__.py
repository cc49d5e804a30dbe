"""Sets of servers: with replicas and Sentinels, and clusters; and what holds while one is lost."""
