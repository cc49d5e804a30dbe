"""One run of one task: a true one under its lease, or a rehearsal over a history."""
