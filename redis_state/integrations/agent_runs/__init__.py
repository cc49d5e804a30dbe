"""What the adapters of agent frameworks share: where a unit is, and how it becomes a step."""
