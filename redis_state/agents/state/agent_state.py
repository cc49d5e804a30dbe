"""AgentState: who an agent is, what it knows, and how far its execution is, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, cast

from pydantic import Field

from redis_state.agents.state.context import AgentContext
from redis_state.agents.state.execution import ExecutionState, ExecutionStatus
from redis_state.agents.state.ids import new_id, uuid_kind
from redis_state.agents.state.inference import LlmConfig, Usage
from redis_state.agents.state.messages import Message, MessageStore, text_of
from redis_state.agents.state.steps import AgentStep, AgentStepType, StepError
from redis_state.agents.state.stop_signals import PRIORITIES, StopReason, StopSignal
from redis_state.agents.state.wire.kinds import integer, model, moment, optional
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now


def _read_execution(value: Any, place: str) -> ExecutionState | None:
    # The original reads [] as an execution, with an id that is another at each look. Nothing is
    # lost by taking it for none.
    if not isinstance(value, Mapping):
        return None
    return ExecutionState.of_wire(cast("Mapping[str, Any]", value), place=place)


_maybe_execution = optional(model(ExecutionState))
_execution = Kind(_read_execution, _maybe_execution.write, _maybe_execution.check)


class AgentState(Wire):
    """The whole picture of an agent. Every ``with_*`` returns a new one and moves ``updated_at``.

    The first five fields and the context outlive executions; ``execution`` is None between them.
    """

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("agent_id", "agentId", uuid_kind, new_id),
        Slot("parent_agent_id", "parentAgentId", optional(uuid_kind), lambda: None),
        Slot("created_at", "createdAt", moment, now),
        Slot("updated_at", "updatedAt", moment, now),
        Slot("context", "context", model(AgentContext), AgentContext),
        Slot("llm_config", "llmConfig", optional(model(LlmConfig)), lambda: None),
        Slot("execution_count", "executionCount", integer, int),
        Slot("execution", "execution", _execution, lambda: None),
    )

    agent_id: str = Field(default_factory=new_id)
    parent_agent_id: str | None = None
    created_at: datetime = Field(default_factory=now)
    updated_at: datetime = Field(default_factory=now)
    context: AgentContext = AgentContext()
    llm_config: LlmConfig | None = None
    execution_count: int = 0
    execution: ExecutionState | None = None

    # What it says of itself

    @property
    def status(self) -> ExecutionStatus | None:
        """How far the execution is; None without one."""
        return self.execution.status if self.execution else None

    @property
    def messages(self) -> tuple[Message, ...]:
        """What is put before a model, without traces of earlier executions."""
        return self.context.messages_for(self.execution.execution_id if self.execution else None)

    @property
    def store(self) -> MessageStore:
        """The conversation."""
        return self.context.store

    @property
    def step_count(self) -> int:
        """The steps of the execution, the one that runs included."""
        return self.execution.step_count if self.execution else 0

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The completed steps."""
        return self.execution.steps if self.execution else ()

    @property
    def current_step(self) -> AgentStep | None:
        """The step that runs."""
        return self.execution.current_step if self.execution else None

    @property
    def last_step(self) -> AgentStep | None:
        """The last completed step."""
        return self.execution.last_step if self.execution else None

    @property
    def last_step_type(self) -> AgentStepType | None:
        """What the last step that is over was."""
        return self.last_step.step_type if self.last_step else None

    @property
    def usage(self) -> Usage:
        """The tokens of the execution."""
        return self.execution.usage if self.execution else Usage()

    @property
    def errors(self) -> tuple[StepError, ...]:
        """The errors of the execution."""
        return self.execution.errors if self.execution else ()

    @property
    def has_errors(self) -> bool | None:
        """Whether the execution has errors; None without one."""
        return self.execution.has_errors if self.execution else None

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends here."""
        return self.execution is None or self.execution.should_stop

    @property
    def has_final_response(self) -> bool:
        """Whether the step that runs, or the last one, is an answer with text."""
        return bool(self.final_response)

    @property
    def final_response(self) -> str:
        """The text of the answer; empty if there is none."""
        step = self.execution.current_step_or_last if self.execution else None
        if step is None or step.step_type is not AgentStepType.FINAL_RESPONSE:
            return ""
        answer = text_of(step.output_messages)
        return answer if answer.strip() else ""

    @property
    def current_response(self) -> str:
        """The answer, else what the step that runs, or the last one, gave."""
        step = self.execution.current_step_or_last if self.execution else None
        return text_of(step.output_messages) if step else ""

    def execution_duration_s(self) -> float | None:
        """Return for how many seconds the execution has run, or ran; None without one."""
        return self.execution.duration_s() if self.execution else None

    def stop_signal(self, priorities: Mapping[StopReason, int] = PRIORITIES) -> StopSignal | None:
        """Return the signal that counts, by a table of priorities."""
        return self.execution.stop_signal(priorities) if self.execution else None

    def stop_reason(self, priorities: Mapping[StopReason, int] = PRIORITIES) -> StopReason | None:
        """Return why it stops."""
        signal = self.stop_signal(priorities)
        return signal.reason if signal else None

    def stop_source(self, priorities: Mapping[StopReason, int] = PRIORITIES) -> str | None:
        """Return who has it stop."""
        signal = self.stop_signal(priorities)
        return signal.source if signal else None

    def debug(self) -> dict[str, Any]:
        """Sum it up for a log: no message and no payload is in it but errors' texts."""
        execution = self.execution
        return {
            "status": self.status,
            "executionCount": self.execution_count,
            "hasExecution": execution is not None,
            "executionId": execution.execution_id if execution else None,
            "steps": self.step_count,
            "continuation": execution.continuation.explain() if execution else None,
            "hasErrors": self.has_errors,
            "errors": self.errors,
            "usage": self.usage.to_dict(),
        }

    # What becomes of it

    def with_context(self, context: AgentContext) -> AgentState:
        """Return it with another context."""
        return self._moved(context=context)

    def with_messages(self, messages: Iterable[Message]) -> AgentState:
        """Return it with messages added to the conversation."""
        return self._moved(context=self.context.with_messages(messages))

    def with_user_message(self, content: str) -> AgentState:
        """Return it with a message of a user."""
        return self.with_messages([Message(role="user", content=content)])

    def with_metadata(self, **values: Any) -> AgentState:
        """Return it with more metadata in its context."""
        return self._moved(context=self.context.with_metadata(**values))

    def with_system_prompt(self, prompt: str) -> AgentState:
        """Return it with other instructions."""
        return self._moved(context=self.context.with_system_prompt(prompt))

    def with_llm_config(self, config: LlmConfig | None) -> AgentState:
        """Return it with a model of its own, or, with None, without."""
        return self._moved(llm_config=config)

    def with_new_execution(self, execution_id: str | None = None) -> AgentState:
        """Return it at the start of an execution, counted."""
        return self._moved(
            execution=ExecutionState.fresh(execution_id),
            execution_count=self.execution_count + 1,
        )

    def with_execution(self, execution: ExecutionState | None) -> AgentState:
        """Return it with another execution."""
        return self._moved(execution=execution)

    def with_current_step(self, step: AgentStep) -> AgentState:
        """Return it with this step running, and with the step's messages in the conversation.

        A step's messages are tagged with their origin, and as a trace unless they are the final
        response. Without an execution one is begun: keep what is returned.
        """
        execution = (self.execution or ExecutionState.fresh()).with_current_step(step)
        if not step.output_messages:
            return self._moved(execution=execution)
        tags: dict[str, Any] = {
            "step_id": step.id,
            "execution_id": execution.execution_id,
            "agent_id": self.agent_id,
        }
        if step.step_type is not AgentStepType.FINAL_RESPONSE:
            tags["is_trace"] = True
        stated = [message.with_metadata(**tags) for message in step.output_messages]
        return self._moved(execution=execution, context=self.context.with_messages(stated))

    def with_current_step_completed(self) -> AgentState:
        """Return it with the running step among the completed ones."""
        if self.execution is None:
            return self
        return self._moved(execution=self.execution.with_current_step_completed())

    def with_stop_signal(self, signal: StopSignal) -> AgentState:
        """Return it with one more reason to stop. Without an execution one is begun."""
        execution = self._begun()
        continuation = execution.continuation.with_signal(signal)
        return self._moved(execution=execution.with_continuation(continuation))

    def with_continuation_requested(self, *, requested: bool = True) -> AgentState:
        """Return it with the request to continue, or without. Without an execution one is begun."""
        execution = self._begun()
        continuation = execution.continuation.with_continuation_requested(requested=requested)
        return self._moved(execution=execution.with_continuation(continuation))

    def with_execution_completed(self) -> AgentState:
        """Return it with its execution over: failed, stopped or completed."""
        return self._moved(execution=self._begun().with_completed())

    def with_failure(self, error: BaseException | StepError) -> AgentState:
        """Return it with its execution failed by an error."""
        recorded = error if isinstance(error, StepError) else StepError.of(error)
        return self._moved(execution=self._begun().with_failure(recorded))

    def for_next_execution(self) -> AgentState:
        """Return it between executions: the context stays, and so does the count."""
        return self._moved(execution=None)

    def redacted(self) -> AgentState:
        """Return it without the key of its model. Its date stays: nothing else has changed."""
        config = self.llm_config
        return self if config is None else self.replaced(llm_config=config.redacted())

    def _begun(self) -> ExecutionState:
        return self.execution or ExecutionState.fresh()

    def _moved(self, **values: Any) -> AgentState:
        return self.changed(**values, updated_at=now())
