"""The state of CrewAI's flows in Redis. Needs the extra ``crewai``.

    flow = ReviewFlow(persistence=RedisStateFlowPersistence(url="redis://localhost:6379/0"))

A crash leaves the state of the last method that ended, with or without what the flow waits for.
"""

from __future__ import annotations

from importlib import import_module

try:
    # What came last of all that this needs.
    _needed = import_module("crewai.flow.async_feedback.types").PendingFeedbackContext
    _base = import_module("crewai.flow.persistence.base").FlowPersistence
except (ImportError, AttributeError) as _error:
    missing = "redis_state.integrations.crewai needs crewai from 1.15 on"
    raise ImportError(f"{missing}: pip install 'redis_state[crewai]'") from _error

from redis_state.integrations.crewai.persistence import RedisStateFlowPersistence

__all__ = ["RedisStateFlowPersistence"]
