"""A graph as a handler of the pool: its interrupts are pauses, its events rows of the session's
log.

**Who runs it.** A run claims the thread for as long as it runs. A later run of the same task takes
the claim of the run before over at once: the task's lease has fenced that run. So a worker that
continues after a stall writes neither the task nor the thread. Nor does it take the claim of a
later run. Another task of the thread waits for the claim. A run that loses the claim, because it
stood still or the server's history went back, hands the task back.

**Where it resumes.** The first run records the newest checkpoint of the thread, and then gives the
graph the input. All checkpoints of the task carry its name. So a later run can compare the newest
checkpoint. If it is of this task, the run resumes the graph there. If it is the recorded one, the
input was lost, and is given again. If it is another one, the run fails with `ThreadMoved`. So it
does if the task has opened a pause and has no checkpoint: its thread was deleted. What a person has
changed since (`aupdate_state`) is of the task whose checkpoint it changes. A
decision never reaches another task's interrupts.

**Decisions.** An interrupt is a pause with the interrupt's id as its key. So of all decisions one
is accepted. It is in the task's journal before the graph gets it. A crash between the two repeats
the resume with the same decision. LangGraph runs a node again from its start when it resumes it.

**Breakpoints.** A stop at a static breakpoint is a pause, whose key is the checkpoint at which the
graph, or the subgraph, stands. A run that begins again asks there again, unless it was decided. A
rejection fails the task.

**Events.** An event's key is made of its mode, its content, and the checkpoint that its step began
with. It also has how often the content came in that step. A step that is repeated after a crash
publishes what is not published yet. LangGraph yields the results of finished nodes again when it
resumes, so none of `updates` is lost. Texts of `messages` are joined: see `messages.py`. Values
have the key of the checkpoint that they are of. LangGraph yields those of a checkpoint again too,
but not the last. So those are published at the end, from the thread. The values of an input are
left out: only a resume yields them. Interrupts are not yielded again. They are published where
their pauses are opened, of the whole graph, from the thread.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START, TAG_HIDDEN
from langgraph.types import Command, Interrupt, StateSnapshot

from redis_state import limits
from redis_state.errors import (
    InvalidField,
    LeaseLost,
    PauseRejected,
    ThreadMoved,
)
from redis_state.integrations.agent_runs.pause_terms import awaited, check_pause_terms
from redis_state.integrations.agent_runs.running import with_agents
from redis_state.integrations.agent_runs.scopes import needed_scope
from redis_state.integrations.langgraph.breakpoints import (
    Place,
    breakpoints,
    has_breakpoints,
    place_of,
    questions,
)
from redis_state.integrations.langgraph.built import Build, BuiltGraph
from redis_state.integrations.langgraph.messages import MessageTexts
from redis_state.integrations.langgraph.nodes import graph_scope
from redis_state.integrations.langgraph.saver import RedisSaver
from redis_state.integrations.langgraph.threads.stored.places import thread_of
from redis_state.integrations.langgraph.waiting import BusyThreads, task_name
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.worker import Decision, Pause, TaskContext
from redis_state.worker.tasks.execution.exits import TaskHandedBack

Mode: TypeAlias = Literal["values", "updates", "custom", "messages", "tasks"]

_MODES: Final = frozenset({"values", "updates", "custom", "messages", "tasks"})
_INTERRUPT: Final = "__interrupt__"
# What each pause of a graph has of its own.
OWN_OPTIONS: Final = frozenset({"reason", "payload", "key", "reveal"})

PauseOptionsOf: TypeAlias = Mapping[str, Any] | Callable[[Interrupt], Any] | None


_THREADS: Final[Mapping[str, Callable[[TaskContext], str]]] = {
    "session": lambda ctx: ctx.task.session_id,
    "task": task_name,
}


def resume_value(decision: Decision) -> Any:
    """Return what `interrupt` returns for a decision: its value, or that it was rejected."""
    if decision.approved:
        return True if decision.value is None else decision.value
    return {"rejected": True, "value": decision.value}


def graph_handler(
    build: Build,
    *,
    thread: Literal["session", "task"] | Callable[[TaskContext], Any] = "session",
    stream_mode: Mode | Sequence[Mode] = ("updates",),
    config: RunnableConfig | None = None,
    context: Any = None,
    resume: Callable[[Decision], Any] = resume_value,
    pause_options: PauseOptionsOf = None,
    lease_s: float = 30.0,
) -> Callable[[TaskContext], Awaitable[Any]]:
    """Make a handler of a graph, for `AgentWorker`.

    ``build`` compiles the graph with the saver that it is given, once for a store. A graph with
    another saver fails the task with InvalidField: no run could resume it. ``thread`` says which
    thread a task continues: that of its session, one of its own, or what a function returns.

    ``context`` is LangGraph's run-time context, or a function of the task's context that returns
    it. It is made in each run of the task, so it has no effects. Nodes get the task's context by
    `current_task`.

    Interrupts are pauses: the payload is the interrupt's value, and the worker is free until a
    decision. ``resume`` makes the value that `interrupt` returns of a decision. Static breakpoints
    are pauses too. ``pause_options`` are those of `TaskContext.open_pause`, or a function of the
    `Interrupt` that returns them. A breakpoint is one whose value is the pause's payload.

    All these functions may be async. ``stream_mode`` names the events that are published, as
    PROGRESS updates ``{"graph": mode, "namespace": [...], "data": ...}``. Tokens of `messages` are
    joined. The task's result is the values of the graph's state.

    Tasks of one thread run one at a time. ``submit(in_turn=True, on_busy=...)`` says what a second
    one does: see `docs/guides/limits.md`. Errors: InvalidField.
    """
    modes = [stream_mode] if isinstance(stream_mode, str) else list(stream_mode)
    if unknown := set(modes) - _MODES:
        raise InvalidField(
            "stream_mode", f"{min(unknown)!r} is none of {', '.join(sorted(_MODES))}"
        )
    limits.seconds("lease_s", lease_s)
    named = thread if callable(thread) else _THREADS.get(str(thread))
    if named is None:
        raise InvalidField("thread", "'session', 'task' or a function is needed")
    if not callable(resume):
        raise InvalidField("resume", f"a function is needed, not {type(resume).__name__}")
    check_pause_terms("pause_options", pause_options, own=OWN_OPTIONS)
    options = GraphOptions(modes, dict(config or {}), context, resume, pause_options)
    built, busy = BuiltGraph(build), BusyThreads()

    async def run(ctx: TaskContext) -> Any:
        saver, graph = await built.of(ctx.store)
        thread_id = thread_of(await awaited(named(ctx)), "thread")
        async with await busy.claimed(saver, ctx, thread_id, lease_s) as claim:
            try:
                return await GraphRun(ctx, saver, graph, thread_id, options).run()
            except LeaseLost as lost:
                if lost.epoch != claim.epoch:
                    raise
                # Of the thread. Another run compares what became of it.
                raise TaskHandedBack(f"the claim on thread {thread_id!r} is lost") from None

    return with_agents(run, scope=graph_scope)


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
        await self._publish_last(state)
        return codec.plain(state.values)

    async def _decisions(
        self, state: StateSnapshot, interrupts: Sequence[Interrupt]
    ) -> dict[str, Any]:
        """Open a pause for each interrupt, then wait for all; return what resumes each."""
        await self._publish_interrupts(state)
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
            await self._emit("updates", {_INTERRUPT: []}, key)
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

    async def _publish_interrupts(self, state: StateSnapshot) -> None:
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

    async def _publish_last(self, state: StateSnapshot) -> None:
        """Publish the last values: a crash may have left their checkpoint without them."""
        if "values" in self._options.modes:
            names: Any = getattr(self._graph, "output_channels", "")
            values: Any = state.values
            if not isinstance(names, str) and isinstance(values, dict):
                named = cast("dict[str, Any]", values)
                values = {name: named[name] for name in names if name in named}
            await _publish_values(self._ctx, (), place_of(state), values)

    async def _emit(self, mode: str, data: Any, of: str) -> None:
        """Publish where the graph stands still, if that mode is wanted."""
        if mode in self._options.modes:
            plain: Any = codec.plain(data)
            content: dict[str, Any] = {"graph": mode, "namespace": [], "data": plain}
            digest = hashlib.sha256(f"{mode} {of}".encode()).hexdigest()[:32]
            await self._ctx.emit(UpdateType.PROGRESS, content, key=f"graph stop {digest}")

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
            events = _Events(self._ctx, self._messages)
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


class _Events:
    """The events of a stretch of a graph, each under a key that a repetition has too."""

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
        data = codec.plain(_without_metadata(chunk) if mode == "updates" else chunk)
        content = {"graph": mode, "namespace": list(namespace), "data": data}
        step = self._step.get(namespace, "")
        digest = hashlib.sha256(step.encode() + b" " + codec.encode(content)).digest()
        self._seen[digest] += 1
        key = f"graph {digest.hex()[:32]} {self._seen[digest]}"
        await self._ctx.emit(UpdateType.PROGRESS, content, key=key)


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


async def _publish_values(
    ctx: TaskContext, namespace: tuple[str, ...], checkpoint_id: str, values: Any
) -> None:
    """Publish the values of a checkpoint, once."""
    content = {"graph": "values", "namespace": list(namespace), "data": codec.plain(values)}
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
