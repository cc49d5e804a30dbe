"""The ``redis-state`` command. Needs the extra ``cli``."""
