"""AG-UI: a run of the protocol is a task, and an interrupt is a pause."""
