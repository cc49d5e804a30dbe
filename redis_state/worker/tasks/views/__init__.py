"""Tasks from outside: one task and its stream, found tasks, and the tasks of sessions."""
