"""Agents in the pool: a handler that executes a session's agent, a step at a time, durably."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

from redis_state import limits
from redis_state.agents.runtime.llm import Scope
from redis_state.agents.runtime.loop import AgentLoop
from redis_state.agents.runtime.run import run_session
from redis_state.agents.runtime.session_runtime import SessionRuntime
from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.execution import ExecutionStatus
from redis_state.agents.state.ids import derived_id, session_id_for
from redis_state.agents.state.messages import MESSAGES
from redis_state.agents.state.session import AgentDefinition, AgentSession
from redis_state.agents.state.stop_signals import StopReason, StopSignal
from redis_state.agents.storage.history import ExecutionHistory, summary_of
from redis_state.agents.storage.session_store import SessionStore
from redis_state.errors import (
    CorruptState,
    InvalidField,
    LeaseLost,
    SessionBusy,
    SessionConflict,
)
from redis_state.models import UpdateType
from redis_state.models.steering import SteeringEvent
from redis_state.scripts import Fence
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.worker.handler.context import TaskContext
from redis_state.worker.runs.config import Handler
from redis_state.worker.tasks.execution.exits import TaskHandedBack
from redis_state.worker.tasks.execution.inbox import Inbox, TaskCancelled

_WAIT_S = 1.0
_AGAIN_S = 0.1
_REPEATED = (ExecutionStatus.FAILED, ExecutionStatus.STOPPED)

Loops = AgentLoop | Callable[[SessionRuntime], AgentLoop]


class InboxSteering:
    """A task's inbox as a loop is steered: CANCEL stops it, PAUSE has it wait."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def checkpoint(self) -> StopSignal | None:
        """Wait while a PAUSE is in force; return a signal after a CANCEL. Errors: LeaseLost."""
        try:
            await self._inbox.checkpoint()
        except TaskCancelled as cancelled:
            if not self._inbox.cancelled:
                raise
            return _user_requested(cancelled.reason)
        return None

    def take(self) -> Sequence[SteeringEvent]:
        """Take the messages for the task."""
        return self._inbox.take()


class AgentFailed(Exception):
    """An agent's execution failed. Its session has the reason."""


def agent_handler(
    loop: Loops,
    *,
    definition: AgentDefinition | None = None,
    sessions: Callable[[RedisStateStore], SessionStore] = SessionStore,
    lease_s: float = 10.0,
    busy_timeout_s: float = 60.0,
    on_failure: Literal["result", "fail"] = "result",
) -> Handler:
    """Make a handler for `AgentWorker` that executes a session's agent once per task.

    A task's input is the message, or an object with ``message`` and ``session``. The default
    session is the task's own (`session_id_for`). With a ``definition`` a missing session is
    created. ``loop`` may be a function, for loops that need the runtime, as sub-agents do. The task
    of a failed agent has a result of status ``failed``. With ``on_failure="fail"`` the task fails
    too.

    A task that was killed between any two steps is taken over and continues from the last completed
    step. CANCEL stops the execution as ``user_requested`` before the task is CANCELLED. PAUSE waits
    between steps. INJECT_CONTEXT, REDIRECT and USER_MESSAGE enter the conversation. A retry of the
    task executes the agent again, from the message on, if its execution has failed or was stopped.

    While another task executes the session, this one waits. If that execution was interrupted, this
    task steps back for ``busy_timeout_s``: it is PENDING meanwhile, because the other may need its
    slot. It does not step back if the other task is known to be terminal. After that time the
    other's execution counts as stopped.

    Errors: ConfigError for impossible times.
    """
    with limits.options():
        limits.seconds("lease_s", lease_s)
        limits.patience("busy_timeout_s", busy_timeout_s)

    async def handle(ctx: TaskContext) -> dict[str, Any]:
        session_id, message = _input(ctx)
        runtime = SessionRuntime(sessions(ctx.store))
        chosen = loop if isinstance(loop, AgentLoop) else loop(runtime)
        run = _AgentRun(ctx, runtime, chosen, busy_timeout_s=busy_timeout_s)
        await run.prepare(session_id, definition)
        await run.choose_execution(session_id)
        session = await run.until_done(session_id, message, lease_s)
        # The execution is stopped and saved: now the task may be cancelled.
        await ctx.checkpoint()
        result = await run.result(session)
        if on_failure == "fail" and result["status"] == ExecutionStatus.FAILED:
            raise AgentFailed(f"after {result['steps']} steps, in session {session.session_id}")
        return result

    return handle


class _Yielding(Exception):
    """An interrupted execution has to continue before this task's begins."""


class _AgentRun:
    def __init__(
        self, ctx: TaskContext, runtime: SessionRuntime, loop: AgentLoop, *, busy_timeout_s: float
    ) -> None:
        self._busy_timeout_s = busy_timeout_s
        self._ctx = ctx
        self._runtime = runtime
        self._loop = loop
        self._steering = InboxSteering(ctx.inbox)
        self._execution_id = ""
        self._repeats: list[str] = []
        # What the runs of the task find out. A later run, or a fork, need not ask for all of it.
        self._found = ctx.keyed_branch("agent", "found", partial=True)

    async def prepare(self, session_id: str, definition: AgentDefinition | None) -> None:
        if definition is None or await self._runtime.sessions.exists(session_id):
            return
        with suppress(SessionConflict):  # another process did
            await self._runtime.create(AgentSession.fresh(definition, session_id=session_id))

    async def choose_execution(self, session_id: str) -> None:
        """Choose the first execution of the task, or that of a retry: each repeats a failed one.

        Recorded with the task, once for each retry: what has failed in this retry is not repeated
        by who takes the task over.
        """
        task = self._ctx.task
        first, *others = _execution_ids(task.session_id, task.task_id, self._ctx.retries)
        self._execution_id = first
        # A cancel stops what was executed last: nothing more is repeated.
        with suppress(TaskCancelled):
            for again in others:
                named = "execution to repeat", again, self._ended
                if await self._found.keyed_step(*named, session_id, self._execution_id):
                    self._repeats.append(self._execution_id)
                    self._execution_id = again

    async def _ended(self, session_id: str, execution_id: str) -> bool:
        """Return whether an execution has ended without an answer."""
        state = (await self._runtime.sessions.get(session_id)).state
        known = await ExecutionHistory(self._runtime.sessions).all(state.agent_id)
        if state.execution is not None:
            known = [*known, summary_of(state)]
        ended = {each.get("executionId"): each.get("status") for each in known}
        return ended.get(execution_id) in _REPEATED

    async def until_done(
        self, session_id: str, message: str | None, lease_s: float
    ) -> AgentSession:
        while True:
            try:
                async with self._runtime.holding(
                    session_id, lease_s=lease_s, wait_s=_WAIT_S
                ) as lease:
                    return await self._execute(session_id, message, lease.fence)
            except _Yielding:
                raise TaskHandedBack(f"session {session_id} is another task's") from None
            except (SessionBusy, SessionConflict, LeaseLost):
                # Another process executes or has changed the session: wait, then use its state.
                await self._ctx.checkpoint()
                await asyncio.sleep(_AGAIN_S)

    async def result(self, session: AgentSession) -> dict[str, Any]:
        """Sum up this task's execution, also if another one has followed it."""
        state = session.state
        if state.execution and state.execution.execution_id == self._execution_id:
            return _result(session, summary_of(state), state.final_response)
        history = ExecutionHistory(self._runtime.sessions)
        summary = await history.find(state.agent_id, self._execution_id) or {}
        return _result(session, summary, _answer_of(state, self._execution_id))

    async def _execute(self, session_id: str, message: str | None, fence: Fence) -> AgentSession:
        try:
            return await run_session(
                self._runtime,
                session_id,
                self._loop,
                message=message,
                execution_id=self._execution_id,
                scope=Scope(session_id, 0, self._steering),
                fence=fence,
                reported=self._report,
                yields=self._continues,
                repeats=self._repeats,
            )
        except asyncio.CancelledError:
            if self._ctx.inbox.cancelled:
                await self._stop(session_id, fence)
            raise

    async def _continues(self, execution_id: str) -> bool:
        """Step back while the task of an interrupted execution may continue it.

        Errors: _Yielding.
        """
        if await self._has_ended(execution_id):
            return False
        # Recorded with the task: each of its runs steps back for the rest of the time only.
        since: float = await self._found.keyed_step("found interrupted", execution_id, self._now_s)
        if await self._now_s() - since >= self._busy_timeout_s:
            return False
        raise _Yielding

    async def _now_s(self) -> float:
        """Return the server's time: the next run may be another worker's, with another clock."""
        return ms_of(await self._ctx.store.transport.commands.time()) / 1000

    async def _has_ended(self, execution_id: str) -> bool:
        """Return whether a task of this session is terminal; tasks of other sessions cannot be
        found.
        """
        tasks, session_id = self._ctx.store.tasks, self._ctx.task.session_id
        for task_id in await tasks.ids(session_id):
            with suppress(CorruptState):
                task = await tasks.look(session_id, task_id)
                retries = 0 if task is None else task.retries
                if execution_id in _execution_ids(session_id, task_id, retries):
                    return task is not None and task.status.is_terminal
        return False

    async def _report(self, session: AgentSession) -> None:
        state = session.state
        if state.current_step is not None:
            return  # answered: the message is added when the tools have run
        try:
            await self._ctx.emit(
                UpdateType.PROGRESS,
                {
                    "message": f"step {state.step_count}",
                    "session": session.session_id,
                    "status": state.status,
                },
                step=state.step_count,
                # Each run resumes from the saved session, and so at another step.
                key=f"{self._execution_id} {state.step_count} {state.status}",
            )
        except TaskCancelled:
            # The loop finds out too, and then there is something to be saved.
            if not self._ctx.inbox.cancelled:
                raise

    async def _stop(self, session_id: str, fence: Fence) -> None:
        """Write down a hard cancel, which comes in the midst of a step: its tools are not in it."""
        session = await self._runtime.get(session_id)
        execution = session.state.execution
        if execution is None or execution.status.is_terminal:
            return
        if execution.execution_id != self._execution_id:
            return  # another task's, for which this one waited
        signal = _user_requested(self._ctx.inbox.cancel_reason)
        state = session.state.with_stop_signal(signal).with_execution_completed()
        with suppress(SessionConflict, LeaseLost):
            await self._runtime.save(session.with_state(state), fence=fence)


def _user_requested(reason: str | None) -> StopSignal:
    return StopSignal(
        reason=StopReason.USER_REQUESTED, message=reason or "cancelled", source="steering"
    )


def _input(ctx: TaskContext) -> tuple[str, str | None]:
    given: Any = ctx.input
    values = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {"message": given})
    session_id = values.get("session") or session_id_for(ctx.task.session_id)
    message = values.get("message")
    if not (message is None or isinstance(message, str)):
        raise InvalidField("message", "text is needed")
    return session_id, message


def _execution_ids(session_id: str, task_id: str, retries: int) -> list[str]:
    """List the ids that executions of a task may have: of its first run, and of each retry."""
    named = "task", session_id, task_id
    return [derived_id(*named), *(derived_id(*named, f"{n + 1}") for n in range(retries))]


def _answer_of(state: AgentState, execution_id: str) -> str:
    answers = [
        message.text
        for message in state.store.section(MESSAGES)
        if message.metadata.get("execution_id") == execution_id and not message.is_trace
    ]
    return answers[-1] if answers else ""


def _result(session: AgentSession, summary: Mapping[str, Any], response: str) -> dict[str, Any]:
    return {
        "session": session.session_id,
        "version": session.version,
        "status": summary.get("status"),
        "response": response.strip(),
        "steps": summary.get("stepCount"),
        "usage": summary.get("usage"),
        "stopReason": summary.get("stopReason"),
    }
