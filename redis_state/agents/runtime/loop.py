"""The loop: call the model, run the tools that it requests, and repeat until it is to stop.

Every id is derived from its parent, so a step that is repeated after a crash is the same step. The
loop keeps nothing: each state that it yields is all that the next process needs. An answer that
requests tools is yielded before they run. The next process runs them, and does not call the model
again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from inspect import isawaitable
from itertools import takewhile
from typing import Any

from redis_state.agents.runtime.limits import DEFAULT_BUDGET, BudgetUse, cost_of, reached
from redis_state.agents.runtime.llm import Driver, Scope, Tool, ToolRun, Turn
from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.budget import ExecutionBudget
from redis_state.agents.state.ids import derived_id
from redis_state.agents.state.inference import InferenceResponse, Usage
from redis_state.agents.state.messages import MESSAGES, Message, ToolCall, ToolResult
from redis_state.agents.state.session import AgentDefinition
from redis_state.agents.state.steps import AgentStep, StepExecution, ToolExecution
from redis_state.agents.state.stop_signals import StopReason, StopSignal
from redis_state.agents.state.wire.frozen import FrozenMap
from redis_state.agents.state.wire.wire import now
from redis_state.errors import BackendError, LostRace, PauseTimeout
from redis_state.errors.groups import found_in
from redis_state.models.steering import SteeringEvent, SteeringEventType
from redis_state.serialization import codec

# Not the agent's failure: the next process continues from the last saved step.
_NOT_OURS = (BackendError, LostRace, PauseTimeout)


class AgentLoop:
    """An executor of agents, one step after the other. One loop serves any number of sessions.

    ``budget`` limits an execution, else the definition's does, else 20 steps, 32,768 tokens and 300
    seconds. The model receives the error of a failed tool, unless ``stop_on_tool_error``. The
    execution counts as failed in either case.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        tools: Sequence[Tool] = (),
        budget: ExecutionBudget | None = None,
        stop_on_tool_error: bool = False,
    ) -> None:
        self._driver = driver
        self._tools = tuple(tools)
        self._budget = budget
        self._stop_on_tool_error = stop_on_tool_error

    async def states(
        self,
        state: AgentState,
        *,
        definition: AgentDefinition | None = None,
        execution_id: str | None = None,
        scope: Scope | None = None,
    ) -> AsyncGenerator[AgentState, AgentState | None]:
        """Execute, and yield each state that is to be kept: begun, answered, done, ended.

        The loop continues with the state that is sent back in its place. An unfinished execution is
        resumed, also from the middle of a step. ``execution_id`` is the requested one: if it has
        ended, nothing is done. An unfinished one of another id is stopped first.
        """
        where = scope or Scope()
        begun = begin(state, execution_id)
        if begun is None:
            return
        current = (yield begun) or begun
        budget = self._budget or (definition and definition.budget) or DEFAULT_BUDGET
        tools = tuple(
            tool for tool in self._tools if definition is None or definition.allows(tool.name)
        )
        work = _Work.of(current)
        current = await _continued(current, where)
        if current.execution is not None and not _is_open(current):
            yield current  # stopped in the midst of a step
        while _is_open(current):
            if current.current_step is None:
                current = _guarded(await _steered(current, where), budget, work)
                if not continues(current):
                    yield current.with_execution_completed()
                    return
                current = await self._requested(current, tools)
                if current.current_step is not None and current.current_step.requested_calls:
                    current = (yield current) or current
            if _is_open(current) and current.current_step is not None:
                current = await self._acted(current, tools, where)
            work = work.and_last(current)
            current = (yield current) or current

    async def _requested(self, state: AgentState, tools: tuple[Tool, ...]) -> AgentState:
        """Return a state with the model's answer as the step that runs; or failed."""
        execution = state.execution
        assert execution is not None  # noqa: S101 - the loop has begun it
        state = state.with_execution(execution.changed(current_step_started_at=now()))
        number = len(execution.step_executions)
        step_id = derived_id(execution.execution_id, "step", str(number))
        step = AgentStep(id=step_id, input_messages=_unanswered(state))
        try:
            response = await self._driver.respond(
                Turn(number, step_id, state, state.messages, tools)
            )
            answered = step.changed(inference_response=response)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            _raise_if_not_ours(error)
            return state.with_current_step(step).with_failure(error)
        return state.with_current_step(answered)

    async def _acted(self, state: AgentState, tools: tuple[Tool, ...], scope: Scope) -> AgentState:
        """Return a state with the step that runs over, its tools run but those that have."""
        step = state.current_step
        assert step is not None  # noqa: S101 - the caller has seen it
        had = step.tool_executions
        runs: list[ToolExecution] = list(had)
        for at, call in enumerate(step.requested_calls[len(had) :], start=len(had)):
            run = ToolRun(_run_id(step.id, at, call), call, state, scope)
            runs.append(await _run_tool(run, tools))
        stated = _stated(step.id, step.inference_response, runs)
        # The original puts what a step says into it at once: of that only the results are new.
        new = stated[1 + len(had) :] if step.output_messages else stated
        over = step.changed(
            output_messages=(*step.output_messages, *new), tool_executions=tuple(runs)
        )
        done = state.with_current_step(over.changed(output_messages=new))
        assert done.execution is not None  # noqa: S101 - it has a step
        done = done.with_execution(done.execution.with_current_step(over))
        if self._stop_on_tool_error and any(run.has_failed for run in runs):
            signal = StopSignal(reason=StopReason.ERROR, message="a tool failed", source="loop")
            done = done.with_stop_signal(signal)
        return done.with_current_step_completed()


def begin(state: AgentState, execution_id: str | None) -> AgentState | None:
    """Begin an execution, or resume an unfinished one; None if the requested one has ended."""
    execution = state.execution
    if execution is not None:
        wanted = execution_id in (None, execution.execution_id)
        if wanted and not execution.status.is_terminal:
            return state
        if execution_id == execution.execution_id:
            return None
    fresh = execution_id or derived_id(state.agent_id, "execution", str(state.execution_count + 1))
    return state.for_next_execution().with_new_execution(fresh)


def continues(state: AgentState) -> bool:
    """Return whether there is another step to do, from what is kept alone."""
    execution = state.execution
    if execution is None or execution.continuation.should_stop:
        return False
    last = execution.last_step
    if last is None or execution.continuation.is_continuation_requested or last.requested_calls:
        return True
    return bool(_unanswered(state))


def message_of(event: SteeringEvent) -> Message | None:
    """Return a steering event as a message; None without a text."""
    payload = event.payload
    match event.event_type:
        case SteeringEventType.USER_MESSAGE:
            role, stated = "user", payload.get("text")
        case SteeringEventType.INJECT_CONTEXT:
            role, stated = "system", payload.get("text")
        case SteeringEventType.REDIRECT:
            named = (payload.get(name) for name in ("instruction", "goal", "query"))
            role, stated = "user", next((text for text in named if text), None)
        case _:
            return None
    if not isinstance(stated, str) or not stated:
        return None
    return Message(
        id=derived_id("steering", event.event_id),
        created_at=event.created_at,
        role=role,
        content=stated,
        metadata=FrozenMap(event_id=event.event_id, source=event.source),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What the steps that are over have used. The time between them is nobody's work."""

    usage: Usage
    seconds: float

    @classmethod
    def of(cls, state: AgentState) -> _Work:
        steps = state.execution.step_executions if state.execution else ()
        return cls(
            sum((done.step.usage for done in steps), Usage()), sum(_seconds(done) for done in steps)
        )

    def and_last(self, state: AgentState) -> _Work:
        steps = state.execution.step_executions if state.execution else ()
        if not steps:
            return self
        last = steps[-1]
        return _Work(self.usage + last.step.usage, self.seconds + _seconds(last))


def _seconds(done: StepExecution) -> float:
    return max(0.0, (done.completed_at - done.started_at).total_seconds())


def _is_open(state: AgentState) -> bool:
    return state.status is not None and not state.status.is_terminal


async def _continued(state: AgentState, scope: Scope) -> AgentState:
    """Resume an interrupted step, unless there is a stop signal; drop one without an answer.

    The time without a process does not count as the step's: its start moves by as much.
    """
    step, execution = state.current_step, state.execution
    if step is None or execution is None or not _is_open(state):
        return state
    answer = step.inference_response
    if not (answer.tool_calls or answer.content or step.output_messages or step.has_errors):
        return state.with_execution(execution.changed(current_step=None))
    signal = await scope.steering.checkpoint()
    if signal is not None:
        state = state.with_stop_signal(signal)
    if state.execution is None or state.execution.continuation.should_stop:
        return state.with_execution_completed()
    begun = execution.current_step_started_at or state.updated_at
    begun += max(timedelta(0), now() - state.updated_at)
    return state.with_execution(execution.changed(current_step_started_at=begun))


async def _steered(state: AgentState, scope: Scope) -> AgentState:
    signal = await scope.steering.checkpoint()
    stated = [message_of(event) for event in scope.steering.take()]
    if stated:
        # A later run receives the steering of an earlier one again.
        known = {message.id for message in state.store.section(MESSAGES)}
        new = [each for each in stated if each is not None and each.id not in known]
        state = state.with_messages(new) if new else state
    return state if signal is None else state.with_stop_signal(signal)


def _guarded(state: AgentState, budget: ExecutionBudget, work: _Work) -> AgentState:
    execution = state.execution
    if budget.is_empty or execution is None or not continues(state):
        return state
    config = state.llm_config
    spent = BudgetUse(
        len(execution.step_executions),
        work.usage,
        work.seconds,
        cost_of(work.usage, config.pricing) if config else 0.0,
    )
    signal = reached(budget, spent, at=now())
    return state if signal is None else state.with_stop_signal(signal)


def _run_id(step_id: str, at: int, call: ToolCall) -> str:
    """Return the id of a tool call, made of its arguments too: another call never has it."""
    arguments = codec.canonical(dict(call.arguments)).decode("utf-8", "backslashreplace")
    return derived_id(step_id, "tool", str(at), call.name, arguments)


async def _run_tool(run: ToolRun, tools: Sequence[Tool]) -> ToolExecution:
    started = now()
    tool = next((each for each in tools if each.name == run.call.name), None)
    if tool is None:
        known = ", ".join(each.name for each in tools) or "none"
        problem = f"no tool named {run.call.name!r}, there are: {known}"
        return ToolExecution.failed(run.call, problem, started_at=started, run_id=run.id)
    try:
        outcome: Any = tool.run(run)
        value: Any = await outcome if isawaitable(outcome) else outcome
    except Exception as error:  # noqa: BLE001 - a tool may raise anything
        _raise_if_not_ours(error)
        return ToolExecution.failed(run.call, error, started_at=started, run_id=run.id)
    return ToolExecution.succeeded(run.call, value, started_at=started, run_id=run.id)


def _raise_if_not_ours(error: Exception) -> None:
    found = found_in(error, *_NOT_OURS)
    if found is not None:
        raise found


def _stated(
    step_id: str, response: InferenceResponse, runs: Sequence[ToolExecution]
) -> tuple[Message, ...]:
    answer = Message(
        id=derived_id(step_id, "message", "0"),
        role="assistant",
        content=response.content,
        tool_calls=response.tool_calls,
    )
    results = (
        _result(derived_id(step_id, "message", str(at)), run.tool_call, run)
        for at, run in enumerate(runs, start=1)
    )
    return answer, *results


def _result(message_id: str, call: ToolCall, run: ToolExecution) -> Message:
    content = run.error if run.error is not None else _text_of(run.value)
    return Message(
        id=message_id,
        role="tool",
        content=content,
        tool_result=ToolResult(
            content=content, call_id=call.id or None, tool_name=call.name, is_error=run.has_failed
        ),
    )


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode(value).decode()


def _unanswered(state: AgentState) -> tuple[Message, ...]:
    """List the messages since the last step: a step's input, without those of earlier steps."""
    last = reversed(state.store.section(MESSAGES))
    return tuple(takewhile(lambda message: "step_id" not in message.metadata, last))[::-1]
