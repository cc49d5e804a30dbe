"""What an execution may use."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from redis_state.agents.state.wire.kinds import integer, moment, number, optional
from redis_state.agents.state.wire.wire import Slot, Wire, now


class ExecutionBudget(Wire):
    """Limits of one execution. None is no limit; zero is one. ``deadline`` is a point in time."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("max_steps", "maxSteps", optional(integer), lambda: None),
        Slot("max_tokens", "maxTokens", optional(integer), lambda: None),
        Slot("max_seconds", "maxSeconds", optional(number), lambda: None),
        Slot("max_cost", "maxCost", optional(number), lambda: None),
        Slot("deadline", "deadline", optional(moment), lambda: None),
    )

    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    deadline: datetime | None = None

    @classmethod
    def unlimited(cls) -> ExecutionBudget:
        """Make one without limits."""
        return cls()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited."""
        return all(getattr(self, slot.field) is None for slot in self.slots)

    def is_exhausted(self, *, at: datetime | None = None) -> bool:
        """Return whether a limit leaves nothing at all. It knows nothing of what was used."""
        limits = (self.max_steps, self.max_tokens, self.max_seconds, self.max_cost)
        if any(limit is not None and limit <= 0 for limit in limits):
            return True
        return self.deadline is not None and self.deadline <= (at or now())
