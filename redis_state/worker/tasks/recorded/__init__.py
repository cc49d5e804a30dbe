"""What is recorded of a task, and read again: input, journal, replay, snapshots."""
