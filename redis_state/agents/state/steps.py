"""The steps of an execution: input and answer of the model, and the tools that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, cast

from pydantic import Field

from redis_state.agents.state.ids import new_id, uuid_kind
from redis_state.agents.state.inference import InferenceResponse, Usage
from redis_state.agents.state.messages import Message, ToolCall
from redis_state.agents.state.stop_signals import ExecutionContinuation
from redis_state.agents.state.wire.frozen import EMPTY
from redis_state.agents.state.wire.kinds import (
    anything,
    as_list,
    instance,
    many,
    model,
    moment,
    optional,
    text,
)
from redis_state.agents.state.wire.lazy_parts import LazySequence
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now
from redis_state.serialization import codec

_UNKNOWN_ERROR = "Unknown execution error"
_TOOL_ERROR = "ToolExecutionException"


class AgentStepType(StrEnum):
    """The kind of a step, derived from its content."""

    TOOL_EXECUTION = "tool_execution"
    FINAL_RESPONSE = "final_response"
    ERROR = "error"


class StepError(Wire):
    """An error, as text: its message, and the name of its class in the language that raised it."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("message", "message", text, lambda: _UNKNOWN_ERROR),
        Slot("class_", "class", text, str),
    )

    message: str = _UNKNOWN_ERROR
    class_: str = ""

    @classmethod
    def of(cls, error: BaseException) -> StepError:
        """Record an exception."""
        return cls(message=codec.text_of(error), class_=type(error).__name__)


class ToolExecution(Wire):
    """One run of a tool. ``result`` is JSON text, None if it failed; ``error`` says why."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("id", "id", uuid_kind, new_id),
        Slot("tool_call", "tool_call", model(ToolCall)),
        Slot("result", "result", optional(text), lambda: None),
        Slot("error", "error", optional(text), lambda: None),
        Slot("started_at", "startedAt", moment, now),
        Slot("completed_at", "completedAt", moment, now, legacy=("endedAt",)),
    )

    id: str = Field(default_factory=new_id)
    tool_call: ToolCall
    result: str | None = None
    error: str | None = None
    started_at: datetime = Field(default_factory=now)
    completed_at: datetime = Field(default_factory=now)

    @classmethod
    def succeeded(
        cls,
        call: ToolCall,
        value: Any,
        *,
        started_at: datetime | None = None,
        run_id: str | None = None,
    ) -> ToolExecution:
        """Record what a tool returned. A value that is not JSON becomes its closest JSON form."""
        return cls(
            id=run_id or new_id(),
            tool_call=call,
            result=codec.encode(value).decode(),
            started_at=started_at or now(),
        )

    @classmethod
    def failed(
        cls,
        call: ToolCall,
        error: BaseException | str,
        *,
        started_at: datetime | None = None,
        run_id: str | None = None,
    ) -> ToolExecution:
        """Record that a tool failed."""
        reason = error if isinstance(error, str) else codec.text_of(error)
        return cls(
            id=run_id or new_id(), tool_call=call, error=reason, started_at=started_at or now()
        )

    @property
    def has_failed(self) -> bool:
        """Whether it failed."""
        return self.error is not None

    @property
    def value(self) -> Any:
        """The result as a value; None if it failed. Text that is not JSON is its own value."""
        if self.result is None:
            return None
        try:
            return codec.decode(self.result.encode("utf-8", "surrogatepass"))
        except ValueError:
            return self.result


class AgentStep(Wire):
    """One turn: input and answer of the model, and the tools that it called."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("id", "id", uuid_kind, new_id),
        Slot("input_messages", "inputMessages", many(model(Message)), tuple),
        Slot("output_messages", "outputMessages", many(model(Message)), tuple),
        Slot("tool_executions", "toolExecutions", many(model(ToolExecution)), tuple),
        Slot("errors", "errors", many(model(StepError)), tuple),
        Slot(
            "inference_response",
            "inferenceResponse",
            model(InferenceResponse),
            InferenceResponse,
        ),
    )

    id: str = Field(default_factory=new_id)
    input_messages: tuple[Message, ...] = ()
    output_messages: tuple[Message, ...] = ()
    tool_executions: tuple[ToolExecution, ...] = ()
    errors: tuple[StepError, ...] = ()
    inference_response: InferenceResponse = Field(default_factory=InferenceResponse)

    @classmethod
    def older(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the request and usage of a model, once kept in the step itself."""
        moved = {key: data[key] for key in ("toolCalls", "usage") if key in data}
        return {"inferenceResponse": moved} if moved else EMPTY

    @property
    def requested_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model requested, run or not."""
        return self.inference_response.tool_calls

    @property
    def usage(self) -> Usage:
        """The tokens that it used."""
        return self.inference_response.usage

    @property
    def all_errors(self) -> tuple[StepError, ...]:
        """The errors of tools that failed, then the others; none of them twice."""
        recorded = {error.message for error in self.errors}
        failed = (run.error for run in self.tool_executions)
        of_tools = [StepError(message=e, class_=_TOOL_ERROR) for e in failed if e is not None]
        return (*(e for e in of_tools if e.message not in recorded), *self.errors)

    @property
    def has_errors(self) -> bool:
        """Whether it, or one of its tools, failed."""
        return bool(self.errors) or any(run.has_failed for run in self.tool_executions)

    @property
    def step_type(self) -> AgentStepType:
        """Its kind: an error, else requested tools, else the final response."""
        if self.has_errors:
            return AgentStepType.ERROR
        if self.requested_calls:
            return AgentStepType.TOOL_EXECUTION
        return AgentStepType.FINAL_RESPONSE

    def with_error(self, error: StepError) -> AgentStep:
        """Return it with one more error."""
        return self.changed(errors=(*self.errors, error))


class StepExecution(Wire):
    """A completed step: when it ran, and whether to continue after it."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("id", "id", uuid_kind, new_id),
        Slot("step", "step", model(AgentStep)),
        Slot(
            "continuation",
            "continuation",
            model(ExecutionContinuation),
            ExecutionContinuation,
        ),
        Slot("started_at", "startedAt", moment, now),
        Slot("completed_at", "completedAt", moment, now, legacy=("endedAt",)),
        Slot("duration", "duration", anything, int),
    )

    id: str
    step: AgentStep
    continuation: ExecutionContinuation = ExecutionContinuation()
    started_at: datetime
    completed_at: datetime
    duration: Any = 0

    @classmethod
    def of(
        cls,
        step: AgentStep,
        continuation: ExecutionContinuation,
        *,
        started_at: datetime,
        completed_at: datetime,
    ) -> StepExecution:
        """Close a step. Its id is the step's; its duration is in seconds."""
        return cls(
            id=step.id,
            step=step,
            continuation=continuation,
            started_at=started_at,
            completed_at=completed_at,
            duration=(completed_at - started_at).total_seconds(),
        )


class StepExecutions(LazySequence[StepExecution]):
    """The completed steps. Each is decoded from its wire form when it is used."""

    kind: ClassVar[type[Any]] = StepExecution

    __slots__ = ()


def _read_executions(value: Any, place: str) -> StepExecutions:
    items = as_list(value, place)
    for at, item in enumerate(items):
        if not isinstance(item, Mapping):
            return StepExecutions([StepExecution.of_wire(item, place=f"{place}[{at}]")])
    return StepExecutions.held(cast("Sequence[Mapping[str, Any]]", items), place=place)


_many_executions = many(model(StepExecution))


def _check_executions(value: Any, place: str) -> StepExecutions:
    if isinstance(value, (list, tuple)):
        value = StepExecutions(_many_executions.check(value, place), place=place)
    return cast("StepExecutions", instance(StepExecutions)(value, place))


step_executions: Kind = Kind(_read_executions, lambda value: value.wire(), _check_executions)
