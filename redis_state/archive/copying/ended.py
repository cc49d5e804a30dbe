"""Tasks that are being archived. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state.archive.model import ArchivedTask
from redis_state.primitives.watchlist import WatchClaim


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that is being archived, and the claim on its entry."""

    claim: WatchClaim
    task: ArchivedTask

    @property
    def size(self) -> int:
        """The bytes of its record and journal."""
        return sum(map(len, [*self.task.record.values(), *self.task.journal.values()]))


def divided(
    ended: Sequence[EndedTask], erased: Mapping[str, int]
) -> tuple[list[EndedTask], list[EndedTask]]:
    """Set apart what is of before its session was erased: Redis may have gone back."""
    left: list[EndedTask] = []
    gone: list[EndedTask] = []
    for each in ended:
        later = each.task.born_us >= erased.get(each.task.session_id, 0)
        (left if later else gone).append(each)
    return left, gone
