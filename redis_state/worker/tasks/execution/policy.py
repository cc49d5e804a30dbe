"""The policy of a worker for the steps of its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redis_state.errors import InvalidField
from redis_state.worker.tasks.execution.retries import RetryPolicy
from redis_state.worker.tasks.recorded.journal import INLINE_BYTES


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """The policy of a worker for steps.

    ``retry`` is how a failed step is retried, unless its work is `retried` by another policy. None
    makes one attempt. ``on_changed`` applies to a task whose handler does not use an entry of
    earlier runs: at a call that stands in its place, or at the end. ``notify`` publishes that, and
    the task ends as its handler does; ``fail`` fails it. Results of more than ``inline_bytes``, as
    JSON, are kept in chunks.
    """

    retry: RetryPolicy | None = None
    on_changed: Literal["notify", "fail"] = "notify"
    inline_bytes: int = INLINE_BYTES

    def __post_init__(self) -> None:
        """Refuse terms that make no sense, before a worker begins under them."""
        if self.on_changed not in ("notify", "fail"):
            raise InvalidField("on_changed", "'notify' or 'fail' is needed")
        if self.inline_bytes < 0:
            raise InvalidField("inline_bytes", "0 or more bytes are needed")
