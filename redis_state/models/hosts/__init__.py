"""Records in the words of a host: capabilities, A2A tasks, snapshots, groups of tasks."""
