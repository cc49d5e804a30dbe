"""How often in a row a task was handed back for trouble that is no verdict on it.

A server that is full, or refuses a command, says nothing of the task: another run continues. Each
such run is put off for longer than the one before. Room is waited for. A refusal may never pass,
so a task that meets too many of them is a dead letter.

What its runs have recorded since is progress: then the row begins again.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Self

from redis_state.backoff import Backoff
from redis_state.errors import ArchiveUnavailable, CommandRefused, CorruptState, StoreFull

# Ten minutes, by these delays: rights that a person is changing are changed by then.
MOST_REFUSALS = 20
# Another worker may be able to read a task that this one cannot. A minute or two, by its delays.
MOST_UNREAD = 10
_BACKOFF_S = Backoff(1.0, 60.0)
# By the server; or by a gateway or an archive that the handler has called.
REFUSALS = (CommandRefused, ArchiveUnavailable)
# Of a handler what is damaged is a failure. A run that meets it elsewhere is no verdict either.
_LASTING = (*REFUSALS, CorruptState)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """How often a task was handed back, and how often of that for a refusal.

    ``done`` is how much its journal had recorded of what is done once, at the last time. ``unread``
    counts workers in a row that could not read it, up to the one of this ``attempt``. All is of one
    ``retry``: an earlier version of the library reopens a task, and leaves it.
    """

    times: int = 0
    refusals: int = 0
    done: int = 0
    unread: int = 0
    attempt: int = 0
    retry: int = 0

    @classmethod
    def read(cls, written: bytes | None, *, retry: int = 0) -> Self:
        """Read the field of a record that was reopened so often. Errors: ValueError, TypeError."""
        if not written:
            return cls(retry=retry)
        found = cls(*map(int, written.split()))
        return found if found.retry == retry else cls(retry=retry)

    def again(self, *, refused: bool, done: int) -> HandedBack:
        """Count a run that has read the task, with so much done."""
        before = self if done <= self.done else HandedBack()
        times, refusals = before.times + 1, before.refusals + refused
        return HandedBack(times, refusals, done, retry=self.retry)

    def again_unread(self, attempt: int) -> HandedBack:
        """Count a run that could not read the task. Any other run between begins the row again."""
        before = self.unread if attempt == self.attempt + 1 else 0
        return replace(self, unread=before + 1, attempt=attempt)

    def has_read(self) -> HandedBack:
        """Begin the row again of those that could not read it."""
        return replace(self, unread=0)

    @property
    def field(self) -> bytes:
        """What the record keeps of it."""
        return " ".join(map(str, astuple(self))).encode()

    @property
    def is_hopeless(self) -> bool:
        """Whether the task was refused too often."""
        return self.refusals >= MOST_REFUSALS

    @property
    def wait_s(self) -> float:
        """How long the task is put off."""
        return _BACKOFF_S.after(self.times)


def handed_back_for(trouble: BaseException, before: HandedBack, *, done: int) -> HandedBack | None:
    """Count a run that ended in trouble; None for trouble that is tried again without a count."""
    if not isinstance(trouble, (StoreFull, *_LASTING)):
        return None
    return before.again(refused=isinstance(trouble, _LASTING), done=done)
