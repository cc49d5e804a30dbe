"""The durable execution of a session's agent: each state of its loop is saved before the next.

A process that dies leaves the last completed step, or an answered one whose tools have to run. The
next process begins there. A repeated step uses the same ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress

from redis_state.agents.runtime.llm import Scope, Unsteered
from redis_state.agents.runtime.loop import AgentLoop, begin
from redis_state.agents.runtime.session_runtime import SessionRuntime
from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.ids import derived_id, execution_id_for
from redis_state.agents.state.messages import MESSAGES, Message
from redis_state.agents.state.session import AgentSession
from redis_state.agents.state.stop_signals import StopReason, StopSignal
from redis_state.agents.state.wire.kinds import text
from redis_state.agents.storage.history import ExecutionHistory, summary_of
from redis_state.errors import SessionBusy
from redis_state.scripts import Fence

Reporter = Callable[[AgentSession], Awaitable[None]]
Yields = Callable[[str], Awaitable[bool]]


async def run_session(
    runtime: SessionRuntime,
    session_id: str,
    loop: AgentLoop,
    *,
    message: str | None = None,
    execution_id: str | None = None,
    scope: Scope | None = None,
    fence: Fence | None = None,
    reported: Reporter | None = None,
    yields: Yields | None = None,
    repeats: Sequence[str] = (),
) -> AgentSession:
    """Execute a session's agent to its end and return the session as it was saved last.

    Named by ``execution_id``, an execution happens once, however often this is called. An execution
    that has ended is not repeated, as long as it is among the last 1,000 of its agent. One that has
    not ended is resumed, and ``message`` is added once. A name that is no UUID stands for the id
    that `execution_id_for` derives of the session and the name. Without a name an execution that
    has not ended is resumed. One of another name is stopped to make room, unless it ``yields`` to
    it. An execution ``repeats`` those that have failed before it: the message that one of them has
    added is not added again, if no other message and no answer has followed it.

    Hold the session meanwhile (`SessionRuntime.holding`) and give its fence. Errors:
    SessionConflict after another process's save: call it again to continue from there.
    SessionBusy if it yields. InvalidField for a name or a message that cannot be one. LeaseLost,
    BackendError.
    """
    if execution_id is not None:
        execution_id = execution_id_for(session_id, execution_id)
    repeated = [execution_id_for(session_id, name) for name in repeats]
    if message is not None:
        message = str(text.check(message, "message"))
    history = ExecutionHistory(runtime.sessions)
    session = await runtime.get(session_id)
    if execution_id is not None and await _is_past(history, session.state, execution_id):
        return session
    if _is_anothers(session.state, execution_id):
        if yields is not None and await yields(_execution_of(session.state)):
            raise SessionBusy(session_id)
        session = await runtime.save(session.with_state(_stopped(session.state)), fence=fence)
    # What is over is written down before another takes its place: only then is it known as done.
    await _record(history, session.state)
    states = loop.states(
        _with_message(_begun(session, execution_id), message, repeated),
        definition=session.definition,
        execution_id=execution_id,
        scope=scope or Scope(session_id, 0, Unsteered()),
    )
    async with aclosing(states):
        kept: AgentState | None = None
        with suppress(StopAsyncIteration):
            while True:
                # Continue with the saved state: hooks may have changed it.
                each = await states.asend(kept)
                kept = session.state
                if each is kept:
                    continue  # resumed: it is saved already
                session = await runtime.save(session.with_state(each), fence=fence)
                kept = session.state
                if reported is not None:
                    await reported(session)
    await _record(history, session.state)
    return session


def _begun(session: AgentSession, execution_id: str | None) -> AgentState:
    """Begin; or return the state if its execution is unfinished, or has ended under this name."""
    state = session.state
    if execution_id is None and not _is_open(state):
        # By the session: a fork has the same agent, and executions of its own. By the version:
        # a process that returns to an older state counts its executions again.
        numbers = str(state.execution_count + 1), str(session.version)
        return begin(state, derived_id(session.session_id, "execution", *numbers)) or state
    return begin(state, execution_id) or state


def _with_message(state: AgentState, stated: str | None, repeated: Sequence[str]) -> AgentState:
    if stated is None or not _is_open(state):
        return state
    message_id = derived_id(_execution_of(state), "message", stated)
    messages = state.store.section(MESSAGES)
    if any(message.id == message_id for message in messages):
        return state
    # Without what steered the turn, and its steps: the next execution does not see those.
    turns = (each for each in reversed(messages) if not each.is_trace)
    last = next((each.id for each in turns if "event_id" not in each.metadata), None)
    if last in {derived_id(execution_id, "message", stated) for execution_id in repeated}:
        return state
    return state.with_messages([Message(id=message_id, role="user", content=stated)])


async def _is_past(history: ExecutionHistory, state: AgentState, execution_id: str) -> bool:
    """Return whether an execution has ended and others have followed it."""
    if _execution_of(state) == execution_id:
        return False
    return await history.knows(state.agent_id, execution_id)


async def _record(history: ExecutionHistory, state: AgentState) -> None:
    if state.execution is not None and not _is_open(state):
        await history.record(state.agent_id, summary_of(state))


def _is_open(state: AgentState) -> bool:
    return state.status is not None and not state.status.is_terminal


def _is_anothers(state: AgentState, execution_id: str | None) -> bool:
    return execution_id not in (None, _execution_of(state)) and _is_open(state)


def _execution_of(state: AgentState) -> str:
    return state.execution.execution_id if state.execution else ""


def _stopped(state: AgentState) -> AgentState:
    signal = StopSignal(
        reason=StopReason.STOP_REQUESTED, message="another execution began", source="session"
    )
    return state.with_stop_signal(signal).with_execution_completed()
