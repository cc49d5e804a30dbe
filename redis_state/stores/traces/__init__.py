"""What belongs to a trace: events, trajectories, bindings, and the sessions that share it."""
