"""Jobs: what asks a worker to run a task, where it is put, and how it is taken back."""
