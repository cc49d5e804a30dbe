"""The events of a graph, as rows of the session's log: each under a key that a repetition has too.

An event's key is made of its mode, its content, and the checkpoint that its step began with. It
also has how often the content came in that step. A step that is repeated after a crash publishes
what is not published yet. LangGraph yields the results of finished nodes again when it resumes, so
none of `updates` is lost. Texts of `messages` are joined: see `messages.py`. Values have the key of
the checkpoint that they are of. LangGraph yields those of a checkpoint again too, but not the last.
So those are published at the end, from the thread. The values of an input are left out: only a
resume yields them. Interrupts are not yielded again. They are published where their pauses are
opened, of the whole graph, from the thread.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Any, Final, cast

from langgraph.types import StateSnapshot

from redis_state.integrations.agent_runs.scopes import needed_scope
from redis_state.integrations.langgraph.handler.breakpoints import place_of
from redis_state.integrations.langgraph.handler.messages import MessageTexts, graph_event
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.worker import TaskContext

_INTERRUPT: Final = "__interrupt__"


class StreamEvents:
    """What LangGraph yields in a stretch of a graph."""

    def __init__(self, ctx: TaskContext, messages: MessageTexts) -> None:
        self._ctx = ctx
        self._messages = messages
        self._step: dict[tuple[str, ...], str] = {}
        self._seen: Counter[bytes] = Counter()
        # Values are those of the checkpoint that comes next. None comes where the graph stops.
        self._values: dict[tuple[str, ...], list[Any]] = {}

    async def publish(self, namespace: tuple[str, ...], mode: str, chunk: Any) -> None:
        """Publish an event of a mode that is wanted. Errors: TaskCancelled."""
        if mode == "messages":
            step = self._step.get(namespace, "")
            if await self._messages.add(step, namespace, chunk):
                return
        await self._messages.publish_before(namespace, mode, chunk)
        if mode == "checkpoints":
            await self._messages.end(namespace)
            # A graph without other events is cancelled between two steps.
            await self._ctx.checkpoint()
            if not namespace:
                needed_scope().forget_nodes()
            self._step[namespace] = chunk["config"]["configurable"]["checkpoint_id"]
            waiting = self._values.pop(namespace, [])
            if waiting and chunk["metadata"].get("source") != "input":
                await _publish_values(self._ctx, namespace, self._step[namespace], waiting[-1])
        elif _has_interrupts(mode, chunk):
            return
        elif mode == "values":
            self._values.setdefault(namespace, []).append(chunk)
        else:
            await self._emit(namespace, mode, chunk)

    async def _emit(self, namespace: tuple[str, ...], mode: str, chunk: Any) -> None:
        data = _without_metadata(chunk) if mode == "updates" else chunk
        content = graph_event(mode, namespace, data)
        step = self._step.get(namespace, "")
        digest = hashlib.sha256(step.encode() + b" " + codec.encode(content)).digest()
        self._seen[digest] += 1
        key = f"graph {digest.hex()[:32]} {self._seen[digest]}"
        await self._ctx.emit(UpdateType.PROGRESS, content, key=key)


class StopEvents:
    """What is published where a graph stands still: at interrupts, at a breakpoint, at its end."""

    def __init__(self, ctx: TaskContext, graph: Any, modes: Collection[str]) -> None:
        self._ctx = ctx
        self._graph = graph
        self._modes = modes

    async def publish_interrupts(self, state: StateSnapshot) -> None:
        """Publish what the graph waits for, as its stream would: LangGraph yields it only once.

        A run that continues while some are answered publishes none again.
        """
        is_named = isinstance(state.values, dict)
        values = cast("dict[str, Any]", state.values) if is_named else {}
        for one in state.interrupts:
            await self._emit("updates", {_INTERRUPT: [one]}, one.id)
            await self._emit("values", {**values, _INTERRUPT: [one]}, one.id)
        for task in state.tasks:
            if task.interrupts:
                data: Any = {"id": task.id, "name": task.name, "error": None, "result": {}}
                data["interrupts"] = task.interrupts
                await self._emit("tasks", data, " ".join(one.id for one in task.interrupts))

    async def publish_breakpoint(self, key: str) -> None:
        """Publish that the graph stands at a breakpoint: an interrupt without a value."""
        await self._emit("updates", {_INTERRUPT: []}, key)

    async def publish_last(self, state: StateSnapshot) -> None:
        """Publish the last values: a crash may have left their checkpoint without them."""
        if "values" in self._modes:
            names: Any = getattr(self._graph, "output_channels", "")
            values: Any = state.values
            if not isinstance(names, str) and isinstance(values, dict):
                named = cast("dict[str, Any]", values)
                values = {name: named[name] for name in names if name in named}
            await _publish_values(self._ctx, (), place_of(state), values)

    async def _emit(self, mode: str, data: Any, of: str) -> None:
        """Publish where the graph stands still, if that mode is wanted."""
        if mode in self._modes:
            content = graph_event(mode, (), data)
            digest = hashlib.sha256(f"{mode} {of}".encode()).hexdigest()[:32]
            await self._ctx.emit(UpdateType.PROGRESS, content, key=f"graph stop {digest}")


async def _publish_values(
    ctx: TaskContext, namespace: tuple[str, ...], checkpoint_id: str, values: Any
) -> None:
    """Publish the values of a checkpoint, once."""
    content = graph_event("values", namespace, values)
    place = codec.encode([*namespace, checkpoint_id])
    key = f"graph values {hashlib.sha256(place).hexdigest()[:32]}"
    await ctx.emit(UpdateType.PROGRESS, content, key=key)


def _has_interrupts(mode: str, chunk: Any) -> bool:
    """Return whether an event shows that the graph stops."""
    if mode not in {"updates", "values", "tasks"} or not isinstance(chunk, dict):
        return False
    found = cast("dict[str, Any]", chunk)
    return bool(found.get("interrupts")) if mode == "tasks" else _INTERRUPT in found


def _without_metadata(chunk: Any) -> Any:
    """Leave out that a result is of an earlier run."""
    if not isinstance(chunk, dict):
        return chunk
    found = cast("dict[str, Any]", chunk)
    return {name: value for name, value in found.items() if name != "__metadata__"}
