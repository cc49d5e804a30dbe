"""Where a graph stands still: before or behind a static breakpoint, or at a question.

LangGraph marks no stop at a breakpoint: it is read from the states of the graph and of its
subgraphs. Each has checkpoints of its own. So a subgraph that stops twice in one step of the graph
around it stands at two places. A question that was answered stays in the state of the graph around,
where the subgraph stops at a breakpoint behind it. So questions are read from the innermost states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias

from langgraph.graph import START
from langgraph.types import Interrupt, StateSnapshot

# The checkpoint at which a graph stands, and the nodes that it would run.
Place: TypeAlias = tuple[str, list[str]]
_Read: TypeAlias = Callable[[Any], Awaitable[StateSnapshot]]


def has_breakpoints(graph: Any) -> bool:
    """Return whether a graph, or one in it, was compiled with breakpoints."""
    inner = (each for _, each in graph.get_subgraphs(recurse=True))
    return any(_named(each, at) for each in (graph, *inner) for at in ("before", "after"))


def questions(state: StateSnapshot) -> list[Interrupt]:
    """Return the interrupts that wait for an answer."""
    found: list[Interrupt] = []
    for task in state.tasks:
        if task.interrupts:
            inner = task.state
            if isinstance(inner, StateSnapshot) and inner.tasks:
                found += questions(inner)
            else:
                found += task.interrupts
    return found


async def breakpoints(graph: Any, state: StateSnapshot, read: _Read) -> list[Place]:
    """Return where a graph and those in it stand at breakpoints, also at such as were passed."""
    found: list[Place] = []
    if state.tasks and await _stands(graph, state, read):
        found.append((place_of(state), list(state.next)))
    inner: dict[str, Any] = dict(graph.get_subgraphs())
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.name in inner:
            found += await breakpoints(inner[task.name], task.state, read)
    return found


def place_of(state: StateSnapshot) -> str:
    """Return the checkpoint of a state."""
    return str(state.config.get("configurable", {}).get("checkpoint_id", ""))


async def _stands(graph: Any, state: StateSnapshot, read: _Read) -> bool:
    if _is_in(_named(graph, "before"), state.next):
        return True
    behind = _named(graph, "after")
    # What a person has changed stands where it was.
    while behind and state.parent_config and _source(state) == "update":
        state = await read(state.parent_config)
    if not behind or state.parent_config is None or _source(state) != "loop":
        return False
    done = await read(state.parent_config)
    return _is_in(behind, (task.name for task in done.tasks))


def _named(graph: Any, at: Literal["before", "after"]) -> Any:
    return getattr(graph, f"interrupt_{at}_nodes", ())


def _is_in(named: Any, nodes: Iterable[str]) -> bool:
    found = {node for node in nodes if node != START}
    return bool(found) if named == "*" else not found.isdisjoint(named)


def _source(state: StateSnapshot) -> str | None:
    return (state.metadata or {}).get("source")
