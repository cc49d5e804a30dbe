"""A flow of CrewAI that waits for a person while no process runs."""
