"""Running an agent: the loop, the model's driver, sub-agents, and one run of a session."""
