"""One execution of an agent: its steps, and whether it continues."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar

from pydantic import Field

from redis_state.agents.state.ids import new_id, uuid_kind
from redis_state.agents.state.inference import Usage
from redis_state.agents.state.steps import (
    AgentStep,
    StepError,
    StepExecution,
    StepExecutions,
    step_executions,
)
from redis_state.agents.state.stop_signals import (
    PRIORITIES,
    ExecutionContinuation,
    StopReason,
    StopSignal,
    better,
)
from redis_state.agents.state.wire.kinds import lenient_moment, model, moment, one_of, optional
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now


class ExecutionStatus(StrEnum):
    """How far an execution is."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more comes of it."""
        return self not in (ExecutionStatus.PENDING, ExecutionStatus.IN_PROGRESS)


def _read_step(value: Any, place: str) -> AgentStep | None:
    return AgentStep.of_wire(value, place=place) if value else None


_maybe_step = optional(model(AgentStep))
_step = Kind(_read_step, _maybe_step.write, _maybe_step.check)
# The original takes a date that it cannot read for the present.
_started = Kind(
    lambda value, place: lenient_moment.read(value, place) or now(), moment.write, moment.check
)


class ExecutionState(Wire):
    """The completed steps, the running one, and whether to continue.

    ``status`` decides whether it has ended: the original sets ``completed_at`` after each step.
    """

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("execution_id", "executionId", uuid_kind, new_id),
        Slot(
            "status",
            "status",
            one_of(ExecutionStatus),
            lambda: ExecutionStatus.PENDING,
        ),
        Slot("started_at", "startedAt", _started, now),
        Slot("completed_at", "completedAt", lenient_moment, lambda: None),
        Slot("step_executions", "stepExecutions", step_executions, StepExecutions),
        Slot(
            "continuation",
            "continuation",
            model(ExecutionContinuation),
            ExecutionContinuation,
        ),
        Slot("current_step_started_at", "currentStepStartedAt", lenient_moment, lambda: None),
        Slot("current_step", "currentStep", _step, lambda: None),
    )

    execution_id: str = Field(default_factory=new_id)
    status: ExecutionStatus = ExecutionStatus.PENDING
    started_at: datetime = Field(default_factory=now)
    completed_at: datetime | None = None
    step_executions: StepExecutions = Field(default_factory=StepExecutions)
    continuation: ExecutionContinuation = ExecutionContinuation()
    current_step_started_at: datetime | None = None
    current_step: AgentStep | None = None

    @classmethod
    def fresh(cls, execution_id: str | None = None) -> ExecutionState:
        """Begin an execution."""
        begun = now()
        return cls(
            execution_id=execution_id or new_id(),
            status=ExecutionStatus.IN_PROGRESS,
            started_at=begun,
            current_step_started_at=begun,
        )

    @property
    def step_count(self) -> int:
        """The completed steps, and the running one."""
        return len(self.step_executions) + (self.current_step is not None)

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The completed steps."""
        return tuple(done.step for done in self.step_executions)

    @property
    def last_step(self) -> AgentStep | None:
        """The last completed step."""
        return self.step_executions[-1].step if self.step_executions else None

    @property
    def current_step_or_last(self) -> AgentStep | None:
        """The running step, else the last completed one."""
        return self.current_step or self.last_step

    @property
    def usage(self) -> Usage:
        """The tokens of all its steps."""
        return sum((step.usage for step in self._all_steps()), Usage())

    @property
    def errors(self) -> tuple[StepError, ...]:
        """The errors of the running step, then of the completed ones."""
        current = (self.current_step,) if self.current_step else ()
        return tuple(chain.from_iterable(step.all_errors for step in (*current, *self.steps)))

    @property
    def has_errors(self) -> bool:
        """Whether any of its steps has errors."""
        return any(step.has_errors for step in self._all_steps())

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends here: by a stop signal, or without further work."""
        if self.continuation.should_stop:
            return True
        if self.continuation.is_continuation_requested:
            return False
        return self.current_step is None or not self.current_step.requested_calls

    def stop_signal(self, priorities: Mapping[StopReason, int] = PRIORITIES) -> StopSignal | None:
        """Return the effective signal, of the last completed step and of the execution."""
        last = self.step_executions[-1].continuation if self.step_executions else None
        of_step = last.stop_signals.highest(priorities) if last else None
        return better(of_step, self.continuation.stop_signals.highest(priorities), priorities)

    def duration_s(self, *, at: datetime | None = None) -> float:
        """Return for how many seconds it has run, or ran."""
        end = self.completed_at if self.status.is_terminal and self.completed_at else at or now()
        return (end - self.started_at).total_seconds()

    def with_current_step(self, step: AgentStep) -> ExecutionState:
        """Return it with another step running."""
        begun = self.current_step_started_at or now()
        return self.changed(current_step=step, current_step_started_at=begun)

    def with_current_step_completed(self) -> ExecutionState:
        """Return it with the running step among the completed ones; itself without one.

        Its stop signals stay, the request to continue does not.
        """
        step = self.current_step
        if step is None:
            return self
        continuation = self.continuation.with_continuation_requested(requested=False)
        done = StepExecution.of(
            step,
            continuation,
            started_at=self.current_step_started_at or self.started_at,
            completed_at=now(),
        )
        return self.changed(
            step_executions=self.step_executions.with_added([done]),
            continuation=continuation,
            current_step=None,
            current_step_started_at=None,
        )

    def with_continuation(self, continuation: ExecutionContinuation) -> ExecutionState:
        """Return it with other signals."""
        return self.changed(continuation=continuation)

    def with_completed(self) -> ExecutionState:
        """Return it as ended: failed with any error, else stopped by a signal, else completed."""
        closed = self.with_current_step_completed()
        return closed.changed(status=_ending(closed), completed_at=now())

    def with_failure(self, error: StepError) -> ExecutionState:
        """Return it as failed, with the error in its last step. Stop signals are dropped.

        An error while no step runs gets a step of its own; the original drops it.
        """
        begun = self.current_step_started_at or now()
        failed = (self.current_step or AgentStep()).with_error(error)
        closed = self.changed(
            current_step=failed,
            current_step_started_at=begun,
            continuation=ExecutionContinuation(),
        ).with_current_step_completed()
        return closed.changed(status=ExecutionStatus.FAILED, completed_at=now())

    def _all_steps(self) -> tuple[AgentStep, ...]:
        return (*self.steps, self.current_step) if self.current_step else self.steps


def _ending(execution: ExecutionState) -> ExecutionStatus:
    if execution.status is ExecutionStatus.FAILED or execution.has_errors:
        return ExecutionStatus.FAILED
    signal = execution.stop_signal()
    forced = signal is not None and signal.reason.was_force_stopped
    return ExecutionStatus.STOPPED if forced else ExecutionStatus.COMPLETED
