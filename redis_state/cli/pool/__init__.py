"""The commands about what serves tasks: queues, schedules, versions of handlers."""
