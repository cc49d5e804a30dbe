"""One run of a task whose handler is a graph.

**Where it resumes.** The first run records the newest checkpoint of the thread, and then gives the
graph the input. All checkpoints of the task carry its name. So a later run can compare the newest
checkpoint. If it is of this task, the run resumes the graph there. If it is the recorded one, the
input was lost, and is given again. If it is another one, the run fails with `ThreadMoved`. So it
does if the task has opened a pause and has no checkpoint: its thread was deleted. What a person has
changed since (`aupdate_state`) is of the task whose checkpoint it changes. A decision never
reaches another task's interrupts.

**Decisions.** An interrupt is a pause with the interrupt's id as its key. So of all decisions one
is accepted. It is in the task's journal before the graph gets it. A crash between the two repeats
the resume with the same decision. LangGraph runs a node again from its start when it resumes it.

**Breakpoints.** A stop at a static breakpoint is a pause, whose key is the checkpoint at which the
graph, or the subgraph, stands. A run that begins again asks there again, unless it was decided. A
rejection fails the task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START, TAG_HIDDEN
from langgraph.types import Command, Interrupt, StateSnapshot

from redis_state.errors import PauseRejected, ThreadMoved
from redis_state.integrations.agent_runs.pause_terms import awaited, check_pause_terms
from redis_state.integrations.langgraph.handler.breakpoints import (
    Place,
    breakpoints,
    has_breakpoints,
    questions,
)
from redis_state.integrations.langgraph.handler.events import StopEvents, StreamEvents
from redis_state.integrations.langgraph.handler.messages import MessageTexts
from redis_state.integrations.langgraph.handler.waiting import task_name
from redis_state.integrations.langgraph.saver import RedisSaver
from redis_state.serialization import codec
from redis_state.worker import Decision, Pause, TaskContext

# What each pause of a graph has of its own.
OWN_OPTIONS: Final = frozenset({"reason", "payload", "key", "reveal"})

PauseOptionsOf: TypeAlias = Mapping[str, Any] | Callable[[Interrupt], Any] | None


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How a graph is run: what is published, its config and context, its decisions and pauses."""

    modes: Sequence[str]
    config: dict[str, Any]
    context: Any
    resume: Callable[[Decision], Any]
    pauses: PauseOptionsOf


class GraphRun:
    """One run of a task whose handler is a graph."""

    def __init__(
        self,
        ctx: TaskContext,
        saver: RedisSaver,
        graph: Any,
        thread_id: str,
        options: GraphOptions,
    ) -> None:
        config = options.config
        self._ctx = ctx
        self._saver = saver
        self._graph = graph
        self._thread_id = thread_id
        # A task that was submitted again under an old id is another one. LangGraph takes no lone
        # surrogates, and leaves out what is NUL.
        task = task_name(ctx).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        self._name = f"{task}@{ctx.task.created_at.timestamp():.6f}"
        self._config: dict[str, Any] = {
            **config,
            "configurable": {**config.get("configurable", {}), "thread_id": thread_id},
            "metadata": {**config.get("metadata", {}), "run_id": self._name},
        }
        self._options = options
        self._context = options.context
        self._messages = MessageTexts(ctx)
        self._stops = StopEvents(ctx, graph, options.modes)
        self._has_breakpoints = has_breakpoints(graph)
        # Keys of the pauses that earlier runs have opened, and the breakpoints of this one.
        self._opened: set[str] = set()
        self._passed: set[str] = set()

    async def run(self) -> Any:
        """Run the graph to its end, or to its next pause."""
        # What was decided for earlier stretches is in the thread.
        self._opened = self._ctx.pass_keyed_pauses()
        self._ctx.pass_keyed_branches()
        if callable(self._context):
            self._context = await awaited(self._context(self._ctx))
        begun = await self._ctx.step("graph", self._newest)
        newest, is_own = await self._newest_and_own()
        if not is_own:
            # A task opens a pause behind a checkpoint of its own. A fork has also its source's.
            if newest != begun or (self._opened and not self._ctx.forked):
                raise ThreadMoved(self._thread_id)
            await self._begin()
        stopped = not is_own
        # Not its `next`: that is empty too when a crash left the writes of all tasks of a step
        # without the checkpoint behind them.
        while (state := await self._state()).tasks:
            await self._pass_breakpoints(state, stopped=stopped)
            given: Any = None
            if (asked := questions(state)) and (stopped or _awaits_input(state)):
                given = Command(resume=await self._decisions(state, asked))
            await self._stream(given)
            stopped = True
        await self._stops.publish_last(state)
        return codec.plain(state.values)

    async def _decisions(
        self, state: StateSnapshot, interrupts: Sequence[Interrupt]
    ) -> dict[str, Any]:
        """Open a pause for each interrupt, then wait for all; return what resumes each."""
        await self._stops.publish_interrupts(state)
        pauses = [await self._open("interrupt", one) for one in interrupts]
        decisions = [await self._ctx.wait_for(pause) for pause in pauses]
        return {
            one.id: await awaited(self._options.resume(decision))
            for one, decision in zip(interrupts, decisions, strict=True)
        }

    async def _open(self, name: str, interrupt: Interrupt) -> Pause:
        given = self._options.pauses
        options = await awaited(given(interrupt)) if callable(given) else given
        if callable(given):
            check_pause_terms("pause_options", options, own=OWN_OPTIONS)
        named: dict[str, Any] = {"name": name, **(options or {}), "key": interrupt.id}
        return await self._ctx.open_pause("await_input", codec.plain(interrupt.value), **named)

    async def _pass_breakpoints(self, state: StateSnapshot, *, stopped: bool) -> None:
        """Pause at each breakpoint that this run has not passed. Errors: PauseRejected.

        ``stopped`` says that the graph has stopped in this run: then it was at something.
        """
        found: list[Place] = []
        if self._has_breakpoints:
            found = await breakpoints(self._graph, state, self._graph.aget_state)
        found = [place for place in found if place[0] not in self._passed]
        if not found and not questions(state) and (stopped or self._opened):
            # Of a subgraph that LangGraph does not find, such as one that a tool calls.
            at = await self._inner_place()
            if stopped or f"breakpoint {at}" in self._opened:
                found = [(at, list(state.next))]
        pauses: list[Pause] = []
        for at, nodes in found:
            key = f"breakpoint {at}"
            await self._stops.publish_breakpoint(key)
            pauses.append(await self._open("breakpoint", Interrupt({"breakpoint": nodes}, key)))
        for (at, _), pause in zip(found, pauses, strict=True):
            decision = await self._ctx.wait_for(pause)
            if not decision.approved:
                raise PauseRejected(pause.name, actor=decision.actor)
            self._passed.add(at)

    async def _inner_place(self) -> str:
        """Return what changes with each checkpoint of the thread, of whatever subgraph."""
        threads = self._saver._threads  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this package
        newest = await threads.namespaces(self._thread_id)
        return hashlib.sha256(b" ".join(sorted(newest))).hexdigest()[:32]

    async def _begin(self) -> None:
        """Give the graph the input.

        LangGraph saves the input beside the first step. An `entrypoint` does its work there, and
        what it records has the saved checkpoint in its name: it begins when that is saved.
        """
        if self._has_breakpoints or not _works_at_once(self._graph):
            await self._stream(self._ctx.input)
            return
        await self._stream(self._ctx.input, interrupt_before="*")
        await self._stream(None)

    async def _stream(self, given: Any, **options: Any) -> None:
        """Run the graph, and publish its events."""
        stream = self._graph.astream(
            given,
            self._config,
            context=self._context,
            stream_mode=["checkpoints", *self._options.modes],
            subgraphs=True,
            durability="sync",
            **options,
        )
        # A run that ends at an event stops its nodes before it gives the thread up.
        async with self._messages, aclosing(stream):
            events = StreamEvents(self._ctx, self._messages)
            async for namespace, mode, chunk in stream:
                await events.publish(namespace, mode, chunk)

    async def _newest(self) -> str | None:
        return (await self._newest_and_own())[0]

    async def _newest_and_own(self) -> tuple[str | None, bool]:
        # Without the values: a long conversation is read where LangGraph needs it.
        about = self._saver._checkpoints.about  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this package
        found = await about(RunnableConfig(configurable={"thread_id": self._thread_id}))
        newest = found.id if found else None
        while found is not None:
            if found.metadata.get("source") != "update" or found.parent is None:
                return newest, found.metadata.get("run_id") == self._name
            found = await about(found.parent)
        return newest, False

    async def _state(self) -> StateSnapshot:
        config = RunnableConfig(configurable=self._config["configurable"])
        # With what is in it: where its subgraphs stand matters at breakpoints alone.
        state = await self._graph.aget_state(config, subgraphs=self._has_breakpoints)
        return cast("StateSnapshot", state)


def _works_at_once(graph: Any) -> bool:
    """Return whether a node of the caller's gets the input: others have one of LangGraph's."""
    nodes: Mapping[str, Any] = getattr(graph, "nodes", {})
    return any(
        START in node.triggers and TAG_HIDDEN not in (node.tags or ()) for node in nodes.values()
    )


def _awaits_input(state: StateSnapshot) -> bool:
    """Return whether all that is left of a step waits for answers: a crash leaves also others."""
    asking = sum(bool(task.interrupts) for task in state.tasks)
    return asking > 0 and asking == len(state.next)
