"""PenguiFlow's stores on Redis: name a factory where PenguiFlow asks for a store.

    penguiflow-admin history --state-store redis_state.integrations.penguiflow:create_store TRACE

`create_store` makes the state store, speaking PenguiFlow's own classes, and `create_memory` a
planner's short-term memory; the others make the stores beside it: OAuth tokens, scheduled jobs, and
tasks of the A2A server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from redis_state.integrations.penguiflow.memory import create_memory, summarizer_of
from redis_state.integrations.penguiflow.state import TYPES, PenguiflowStateStore, create_store
from redis_state.integrations.penguiflow.stores.jobs import PenguiflowJobStore, create_job_store
from redis_state.integrations.penguiflow.stores.tokens import (
    PenguiflowTokenStore,
    create_token_store,
)

if TYPE_CHECKING:
    from redis_state.integrations.penguiflow.stores.a2a import (
        PenguiflowA2ATaskStore,
        create_a2a_task_store,
    )
else:

    def __getattr__(name: str) -> object:
        # With PenguiFlow's A2A package comes a web framework: only who asks for its store pays.
        if name in {"PenguiflowA2ATaskStore", "create_a2a_task_store"}:
            return getattr(import_module(f"{__name__}.stores.a2a"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "TYPES",
    "PenguiflowA2ATaskStore",
    "PenguiflowJobStore",
    "PenguiflowStateStore",
    "PenguiflowTokenStore",
    "create_a2a_task_store",
    "create_job_store",
    "create_memory",
    "create_store",
    "create_token_store",
    "summarizer_of",
]
