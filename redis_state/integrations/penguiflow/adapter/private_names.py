"""The private names of PenguiFlow that are used here: a session's inboxes, a planner's copies of
its pauses, its memory, a flow's records of its traces, the parts of its playground.

Another version may lack them. Then its inboxes are not found, and the rest is skipped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from penguiflow import PenguiFlow, core
from penguiflow.planner import ReactPlanner
from penguiflow.sessions import StreamingSession
from penguiflow.state import SteeringEvent, SteeringEventType
from penguiflow.steering import SteeringInbox

from redis_state.errors import ConfigError


def inbox_of(session: StreamingSession, task_id: str) -> SteeringInbox | None:
    """Return the inbox of a task that runs here."""
    inboxes: dict[str, SteeringInbox] = getattr(session, "_steering_inboxes", {})
    return inboxes.get(task_id)


def has_room(inbox: SteeringInbox, event: SteeringEvent) -> bool:
    """Return whether an inbox would take a message rather than drop it."""
    if not inbox.has_event():
        # `SteeringInbox.next` does not decrement its count for the message that it returns.
        inbox.__dict__["_pending_user_message_count"] = 0
        return True
    fields = vars(inbox)
    if fields["_queue"].full():
        return False
    pending: int = fields["_pending_user_message_count"]
    most: int = fields["_max_pending_user_messages"]
    return event.event_type is not SteeringEventType.USER_MESSAGE or pending < most


def forget(session: StreamingSession, event: SteeringEvent) -> None:
    """Make a session accept an event again that it has seen but could not act on."""
    seen: dict[str, deque[str]] = getattr(session, "_seen_event_ids", {})
    with suppress(KeyError, ValueError):
        seen[event.task_id].remove(event.event_id)


def has_copy(planner: ReactPlanner, token: str) -> bool:
    """Return whether a planner, or one of its sessions' planners, keeps a copy of a pause."""
    return any(token in copies for copies in _copies(planner))


@contextmanager
def replaced(module: str, name: str, value: object) -> Generator[None]:
    """Set a name in a module of PenguiFlow's to ``value``, for the length of the block.

    For what it makes itself and takes from nobody. Errors: ConfigError if it has no such name.
    """
    found = import_module(module)
    if not hasattr(found, name):
        raise ConfigError(f"this version of penguiflow has no {module}.{name}")
    before = getattr(found, name)
    setattr(found, name, value)
    try:
        yield
    finally:
        setattr(found, name, before)


def drop_copies(planner: ReactPlanner, token: str) -> None:
    """Drop the copies of a pause that a planner and its sessions' planners keep."""
    for copies in _copies(planner):
        copies.pop(token, None)


def _copies(planner: ReactPlanner) -> list[dict[str, Any]]:
    sessions: dict[str, Any] = getattr(planner, "_session_planners", {})
    return [getattr(each, "_pause_records", {}) for each in (planner, *sessions.values())]


def memory_of(planner: ReactPlanner) -> Any:
    """Return the memory object that a planner was made with, or None."""
    return getattr(planner, "_memory_singleton", None)


def planned_memory(planner: ReactPlanner) -> tuple[Any, Any] | None:
    """Return the configuration of the memories that a planner makes itself, and its summarizer.

    None if it makes none.
    """
    config = getattr(planner, "_memory_config", None)
    if config is None or config.strategy == "none" or memory_of(planner) is not None:
        return None
    summarizer = getattr(planner, "_get_short_term_memory_summarizer", lambda: None)
    return config, summarizer() if config.strategy == "rolling_summary" else None


def give_memory(planner: ReactPlanner, memory: Any) -> None:
    """Give a memory object to a planner, and to those that it makes of itself for its sessions."""
    vars(planner)["_memory_singleton"] = memory
    made_with: dict[str, Any] = getattr(planner, "_init_kwargs", None) or {}
    made_with["short_term_memory"] = memory


async def save_memory(planner: ReactPlanner, memory: Any, tool_context: Mapping[str, Any]) -> None:
    """Save a memory object as its planner does after a turn, which logs the errors."""
    find = getattr(planner, "_resolve_memory_key", None)
    save = getattr(planner, "_maybe_memory_persist", None)
    key = None if find is None else find(None, tool_context)
    if key is not None and save is not None:
        await save(memory, key)


async def forget_trace(flow: PenguiFlow, trace_id: str) -> None:
    """Drop what a flow keeps of an ended trace: it would keep a lock of each for ever.

    A trace that nobody has fetched keeps its lock taken, so that it could not run again.
    """
    release = getattr(flow, "_release_trace_roundtrip", None)
    if release is not None:
        await release(trace_id)
    getattr(flow, "_trace_roundtrip_locks", {}).pop(trace_id, None)


def let_go(flow: PenguiFlow) -> None:
    """End a stopped flow's wait for output of its nodes: nothing will come.

    Its own stop leaves these tasks waiting for ever.
    """
    contexts: dict[Any, Any] = getattr(flow, "_contexts", {})
    edges: dict[Any, Any] = getattr(contexts.get(core.ROOKERY), "_incoming", {})
    for edge in edges.values():
        for waiting in list(getattr(edge.queue, "_getters", ())):
            waiting.cancel()


def when_a_node_ends(flow: PenguiFlow, call: Callable[[], None]) -> None:
    """Call something when a node of a running flow ends: what is sent to it waits for ever."""
    nodes: list[asyncio.Task[Any]] = getattr(flow, "_tasks", [])
    for node in nodes:
        node.add_done_callback(lambda _: call())


__all__ = [
    "drop_copies",
    "forget",
    "forget_trace",
    "give_memory",
    "has_copy",
    "has_room",
    "inbox_of",
    "let_go",
    "memory_of",
    "planned_memory",
    "replaced",
    "save_memory",
    "when_a_node_ends",
]
