"""Stored tasks that move by ASAP's rules, with ASAP's words and ASAP's error."""

from __future__ import annotations

from enum import Enum
from typing import Any

from redis_state.errors import InvalidTransition
from redis_state.integrations.asap.package import load
from redis_state.models import ASAP, TaskState
from redis_state.scripts import Fence
from redis_state.store import RedisStateStore


async def move_task(
    store: RedisStateStore,
    session_id: str,
    task_id: str,
    status: str | Enum,
    *,
    fence: Fence | None = None,
    **changes: Any,
) -> TaskState:
    """Move a stored task to one of ASAP's states, as `Transitions.move` does.

    ASAP's own `transition` checks a copy; here the server checks the task. Errors: ASAP's
    InvalidTransitionError, with the state it has, ``missing`` for no task; InvalidField for a word
    that ASAP does not know; LeaseLost.
    """
    try:
        return await store.transitions.move(
            session_id, task_id, status, words=ASAP, fence=fence, **changes
        )
    except InvalidTransition as refused:
        raise load("asap.errors").InvalidTransitionError(
            from_state=refused.current, to_state=refused.wanted, details={"task_id": task_id}
        ) from refused
