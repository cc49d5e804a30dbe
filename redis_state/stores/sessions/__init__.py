"""What belongs to a session: tasks, their states, updates and steering."""
