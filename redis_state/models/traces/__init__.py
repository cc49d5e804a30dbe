"""The records of a trace: audit events, bindings, planner events, trajectories."""
