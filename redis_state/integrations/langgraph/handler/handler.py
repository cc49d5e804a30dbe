"""A graph as a handler of the pool: its interrupts are pauses, its events rows of the session's
log.

**Who runs it.** A run claims the thread for as long as it runs. A later run of the same task takes
the claim of the run before over at once: the task's lease has fenced that run. So a worker that
continues after a stall writes neither the task nor the thread. Nor does it take the claim of a
later run. Another task of the thread waits for the claim. A run that loses the claim, because it
stood still or the server's history went back, hands the task back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from langchain_core.runnables import RunnableConfig

from redis_state import limits
from redis_state.errors import InvalidField, LeaseLost
from redis_state.integrations.agent_runs.pause_terms import awaited, check_pause_terms
from redis_state.integrations.agent_runs.running import with_agents
from redis_state.integrations.langgraph.handler.built import Build, BuiltGraph
from redis_state.integrations.langgraph.handler.nodes import graph_scope
from redis_state.integrations.langgraph.handler.run import (
    OWN_OPTIONS,
    GraphOptions,
    GraphRun,
    PauseOptionsOf,
)
from redis_state.integrations.langgraph.handler.waiting import BusyThreads, task_name
from redis_state.integrations.langgraph.threads.stored.places import thread_of
from redis_state.worker import Decision, TaskContext
from redis_state.worker.tasks.execution.exits import TaskHandedBack

Mode: TypeAlias = Literal["values", "updates", "custom", "messages", "tasks"]

_MODES: Final = frozenset({"values", "updates", "custom", "messages", "tasks"})
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
