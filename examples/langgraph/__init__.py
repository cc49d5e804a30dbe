"""A graph of LangGraph in the pool: a refund that a person approves while workers are killed."""
