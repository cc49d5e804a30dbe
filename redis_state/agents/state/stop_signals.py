"""The reasons to stop an execution, or to continue all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from redis_state.agents.state.wire.frozen import EMPTY, FrozenMap
from redis_state.agents.state.wire.kinds import (
    boolean,
    instance,
    many,
    mapping,
    model,
    one_of,
    text,
    text_or_none,
)
from redis_state.agents.state.wire.wire import Kind, Slot, Wire


class StopReason(StrEnum):
    """Why an execution stops."""

    ERROR = "error"
    STOP_REQUESTED = "stop_requested"
    USER_REQUESTED = "user_requested"
    STEPS_LIMIT = "steps_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - not a password
    TIME_LIMIT = "time_limit"
    RETRY_LIMIT = "retry_limit"
    FINISH_REASON = "finish_reason"
    COMPLETED = "completed"
    UNKNOWN = "unknown"

    @property
    def was_force_stopped(self) -> bool:
        """Whether something stopped it, other than its own end."""
        return self not in (StopReason.COMPLETED, StopReason.FINISH_REASON)


# Of two signals the one with the lower number counts. The original moved `user_requested` up in its
# release 2.2; its guide, and everything older, still has it after the limits.
PRIORITIES: Mapping[StopReason, int] = {reason: place for place, reason in enumerate(StopReason)}
GUIDE_PRIORITIES: Mapping[StopReason, int] = {
    StopReason.ERROR: 0,
    StopReason.STOP_REQUESTED: 1,
    StopReason.STEPS_LIMIT: 2,
    StopReason.TOKEN_LIMIT: 3,
    StopReason.TIME_LIMIT: 4,
    StopReason.RETRY_LIMIT: 5,
    StopReason.FINISH_REASON: 6,
    StopReason.USER_REQUESTED: 7,
    StopReason.COMPLETED: 8,
    StopReason.UNKNOWN: 9,
}


class StopSignal(Wire):
    """One reason to stop, with a message, facts and who says so."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot(
            "reason",
            "reason",
            one_of(StopReason, unknown=StopReason.UNKNOWN),
            lambda: StopReason.COMPLETED,
        ),
        Slot("message", "message", text, str),
        Slot("context", "context", mapping, lambda: EMPTY),
        Slot("source", "source", text_or_none, lambda: None),
    )

    reason: StopReason = StopReason.COMPLETED
    message: str = ""
    context: FrozenMap = EMPTY
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else str(self.reason)


_many_signals = many(model(StopSignal))


class StopSignals(Wire):
    """Signals in the order in which they were given, each as often as it was."""

    slots: ClassVar[tuple[Slot, ...]] = (Slot("items", "items", _many_signals, tuple),)

    items: tuple[StopSignal, ...] = ()

    def __iter__(self) -> Iterator[StopSignal]:  # type: ignore[override]
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def with_signal(self, signal: StopSignal) -> StopSignals:
        """Return them with one more."""
        return StopSignals(items=(*self.items, signal))

    def highest(self, priorities: Mapping[StopReason, int] = PRIORITIES) -> StopSignal | None:
        """Return the signal that counts: the most urgent, of equals the first."""
        return min(self.items, key=lambda signal: priorities[signal.reason], default=None)


_signals = Kind(
    lambda value, place: StopSignals(items=_many_signals.read(value, place)),
    lambda value: _many_signals.write(value.items),
    instance(StopSignals),
)


class ExecutionContinuation(Wire):
    """Whether to continue: the signals against it, and whether continuing was requested."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("stop_signals", "stop_signals", _signals, StopSignals),
        Slot("is_continuation_requested", "is_continuation_requested", boolean, bool),
    )

    stop_signals: StopSignals = StopSignals()
    is_continuation_requested: bool = False

    @property
    def should_stop(self) -> bool:
        """Whether there are signals and continuing was not requested."""
        return bool(self.stop_signals) and not self.is_continuation_requested

    def with_signal(self, signal: StopSignal) -> ExecutionContinuation:
        """Return it with one more signal."""
        return self.changed(stop_signals=self.stop_signals.with_signal(signal))

    def with_continuation_requested(self, *, requested: bool = True) -> ExecutionContinuation:
        """Return it with the request to continue, or without."""
        return self.changed(is_continuation_requested=requested)

    def explain(self) -> str:
        """Return it as one line of text."""
        signals = " | ".join(str(signal) for signal in self.stop_signals)
        given = f"Stop Signals: {signals}" if signals else "No Stop Signals"
        asked = "Yes" if self.is_continuation_requested else "No"
        return f"{given}; Continuation Requested: {asked}"


def better(
    first: StopSignal | None,
    second: StopSignal | None,
    priorities: Mapping[StopReason, int] = PRIORITIES,
) -> StopSignal | None:
    """Return the more urgent of two signals; of equals the first."""
    given: tuple[Any, ...] = tuple(each for each in (first, second) if each is not None)
    return min(given, key=lambda signal: priorities[signal.reason], default=None)
