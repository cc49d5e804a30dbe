"""Agents of the OpenAI Agents SDK that outlive their workers, and wait for people without one."""
