"""Agents of pydantic-ai that outlive their workers, and wait for people without one."""
