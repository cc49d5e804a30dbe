"""Tasks that are being archived, in groups. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state.archive.model import ArchivedTask
from redis_state.primitives.watchlist import WatchClaim

_SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that is being archived, and the claim on its entry."""

    claim: WatchClaim
    task: ArchivedTask


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


def in_slices(ended: Sequence[EndedTask]) -> Iterable[Sequence[EndedTask]]:
    """Divide tasks into slices of some 4 MB."""
    some: list[EndedTask] = []
    size = 0
    for each in ended:
        task = each.task
        size += sum(map(len, [*task.record.values(), *task.journal.values()]))
        some.append(each)
        if size >= _SLICE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
