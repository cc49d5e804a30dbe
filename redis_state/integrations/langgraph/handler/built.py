"""The graph of a store, compiled once, with a saver whose threads a task can claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias

from redis_state.errors import InvalidField
from redis_state.integrations.langgraph.saver import RedisSaver
from redis_state.store import RedisStateStore

Build: TypeAlias = Callable[[RedisSaver], Any]


@dataclass
class _Built:
    store: RedisStateStore
    # Of the store's loop: an async `build` is awaited by one of the tasks that wait for it.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: tuple[RedisSaver, Any] | None = None


class BuiltGraph:
    """What `build` returns, for the store of the last run: a process has one, until it changes."""

    def __init__(self, build: Build) -> None:
        if not callable(build):
            raise InvalidField(
                "build", f"a function that compiles a graph is needed, not {type(build).__name__}"
            )
        self._build = build
        self._built: _Built | None = None

    async def of(self, store: RedisStateStore) -> tuple[RedisSaver, Any]:
        """Return a store's graph and its saver. Errors: those of `build`; InvalidField."""
        built = self._built
        if built is None or built.store is not store:
            built = self._built = _Built(store)
        async with built.lock:
            if built.found is None:
                graph = self._build(RedisSaver(store))
                graph = await graph if isawaitable(graph) else graph
                built.found = _saver_of(graph, store), graph
        return built.found


def _saver_of(graph: Any, store: RedisStateStore) -> RedisSaver:
    """Return a graph's saver: in another one its tasks have no claim, and no run resumes.

    A saver of the function's own, with its serializer or lifetime, is as good as the given one.
    """
    saver: object = getattr(graph, "checkpointer", None)
    if isinstance(saver, RedisSaver) and saver.store is store:
        return saver
    if not hasattr(graph, "astream"):
        found = f"it returned {type(graph).__name__}"
    elif saver is None or isinstance(saver, bool):
        found = "the graph has no saver"
    elif isinstance(saver, RedisSaver):
        found = "the graph's RedisSaver is of another store"
    else:
        found = f"the graph has {type(saver).__name__}"
    raise InvalidField(
        "build", f"has to return a graph compiled with the saver that it is given: {found}"
    )
