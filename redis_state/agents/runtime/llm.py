"""What a loop drives: a model that answers, and tools that it may have run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.ids import derived_id
from redis_state.agents.state.inference import InferenceResponse, Usage
from redis_state.agents.state.messages import Message, ToolCall
from redis_state.agents.state.stop_signals import StopSignal
from redis_state.agents.state.wire.frozen import FrozenMap
from redis_state.models.steering import SteeringEvent


class Steering(Protocol):
    """The source of steering for a running agent, between two of its steps."""

    async def checkpoint(self) -> StopSignal | None:
        """Wait while a PAUSE is in force; return a signal after a stop."""
        ...

    def take(self) -> Sequence[SteeringEvent]:
        """Take the messages since the last call, in order."""
        ...


class Unsteered:
    """The source without any steering."""

    async def checkpoint(self) -> StopSignal | None:
        """Return at once."""
        return None

    def take(self) -> Sequence[SteeringEvent]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an agent runs: in which session, how deep below the first one, and who steers it."""

    session_id: str = ""
    depth: int = 0
    steering: Steering = field(default_factory=Unsteered)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One call of a tool. ``id`` is the same when a crash has it run again: use it as the
    idempotency key of whatever the tool does outside.
    """

    id: str
    call: ToolCall
    state: AgentState
    scope: Scope

    @property
    def arguments(self) -> FrozenMap:
        """What the model gave it."""
        return self.call.arguments


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name, its description for a model, and its function.

    ``parameters`` is the JSON schema of its arguments. What ``run`` returns becomes JSON. The model
    receives what it raises.
    """

    name: str
    run: Callable[[ToolRun], Awaitable[Any] | Any]
    description: str = ""
    parameters: FrozenMap = field(default_factory=FrozenMap)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model is to answer to: the messages and the tools, and the state behind them.

    ``number`` counts the execution's steps from 0; ``step_id`` is the step's, the same again after
    a crash.
    """

    number: int
    step_id: str
    state: AgentState
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


class Driver(Protocol):
    """Has a model answer."""

    async def respond(self, turn: Turn) -> InferenceResponse:
        """Answer: with text, or with tools to be run, or both. What it raises fails the step."""
        ...


Scripted: TypeAlias = str | ToolCall | Sequence[ToolCall] | InferenceResponse | Exception


class ScriptedDriver:
    """Answers from a script, by the number of the step: the same in every process.

    A text is a final answer, calls are tools to be run, an exception is raised. Each answer uses
    ten tokens in and five out, unless it says something else.
    """

    def __init__(self, *script: Scripted) -> None:
        self._script = script

    async def respond(self, turn: Turn) -> InferenceResponse:
        """Answer as the script says. Errors: LookupError at its end."""
        if turn.number >= len(self._script):
            raise LookupError(f"the script has {len(self._script)} answers, no {turn.number + 1}th")
        answer = self._script[turn.number]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, InferenceResponse):
            return answer
        calls = () if isinstance(answer, str) else answer
        return InferenceResponse(
            id=derived_id(turn.step_id, "response"),
            content=answer if isinstance(answer, str) else "",
            tool_calls=(calls,) if isinstance(calls, ToolCall) else tuple(calls),
            finish_reason="stop" if isinstance(answer, str) else "tool_calls",
            usage=Usage(input=10, output=5),
        )
