"""Parents and children: tasks that a task spawns, waits for, and takes with it."""
