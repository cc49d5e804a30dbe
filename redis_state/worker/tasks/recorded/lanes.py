"""A lane: one asyncio task of a handler, and how far it has come in this run and in earlier ones.

Events in one lane have an order, and events in two lanes have none. A lane is found again by three
things: the `branch` that it uses, its coroutine's name, and what it does first. Times and random
ids are ignored.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from redis_state.scripts import LaneState
from redis_state.serialization import codec
from redis_state.serialization.lossy import EXACT

log: logging.Logger = logging.getLogger(__name__)

# How a lane's entry in the journal begins.
LANE: Final = "lane:"
# A handler that does not come by what it did before is given what waits for it after so long.
_PATIENCE_S = 5.0
# And one that never stands still for that long, after so many times that time.
_PATIENCES = 6

# Times, random ids, measurements: what a replay may write differently.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.+Z-]*|\d+\.\d{3,}|(?=[a-f-]*\d)[0-9a-f-]{8,}"
    r"|(?=[A-F-]*\d)[0-9A-F-]{8,}|\d\d?:\d\d(?::\d\d)?(?:\.\d+)?"
)

# A steering event as its log keeps it: its id and its row.
SteeringRow = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Steering that a lane was given, and how many things it had done by then."""

    place: int
    rows: Sequence[SteeringRow]


@dataclass(frozen=True, slots=True)
class LaneIdentity:
    """How a lane is found again: the branch and the coroutine that it runs, what it does first.

    ``shape`` is what it does first without what differs in each run.
    """

    branch: str = ""
    coroutine: str = ""
    first: str = ""
    shape: str = ""

    @classmethod
    def of(cls, branch: str, coroutine: str, first: Any) -> LaneIdentity:
        """Describe a lane by its first deed, a value that JSON can hold."""
        text = codec.canonical(first).decode("utf-8", "replace")
        shape = _VOLATILE.sub("*", text)
        return cls(branch, coroutine, codec.fingerprint(text), codec.fingerprint(shape))


@dataclass(slots=True)
class Progress:
    """The number of things that a replay repeats, in this run and in earlier ones.

    These are the used steps, pauses, children and updates.
    """

    place: int = 0
    reached: int = 0


class Lane:
    """One asyncio task of a handler: how far it has come in this run, and in earlier ones.

    ``all_lanes`` is the progress of all lanes of the handler, or of one step's work. The task in
    which that was begun goes by it: whatever the others do, they do after it has begun them.
    """

    def __init__(
        self,
        name: str,
        about: LaneIdentity,
        all_lanes: Progress,
        *,
        progressed: Callable[[], None],
        write: Callable[[Any], bytes] = codec.encode,
        own: bool = False,
    ) -> None:
        self.name = name
        self._write = write
        self.about = about
        # Whether it has one update of a kind, however often that is emitted.
        self.once = False
        self.deliveries: deque[Delivery] = deque()
        self._all = all_lanes
        self._progressed = progressed
        self._mine = Progress()
        self._progress = all_lanes if own else self._mine
        self._emitted: Counter[str] = Counter()
        # Of earlier runs.
        self._recorded: Counter[str] = Counter()
        # The end of what is written of it: it changes with an update, not with a step.
        self._written: bytes | None = None
        # What failed to be published, and the numbers that it would have had.
        self._unsent: dict[str, tuple[str, int]] = {}
        self._live = False
        self._diverged = False
        self._withheld_at = -1
        self._withheld_since = 0.0
        self._withheld_first = 0.0
        self._passed_at = -1

    @property
    def place(self) -> int:
        """How far it has come in this run."""
        return self._progress.place

    @property
    def was_found(self) -> bool:
        """Whether earlier runs had it."""
        return self._mine.reached > 0

    @property
    def is_behind(self) -> bool:
        """Whether it came further in earlier runs."""
        return self._mine.place < self._mine.reached

    @property
    def order(self) -> int:
        """How far all lanes of the handler, or of its step, have come in this run."""
        return self._all.place

    def restore(self, reached: int, emitted: Mapping[str, int]) -> None:
        """Set how far it came in earlier runs."""
        self._mine.reached = reached
        self._all.reached += reached
        self._recorded = Counter(emitted)
        self._written = None

    def state(self) -> LaneState:
        """Write how far it has come. A replay that is not there yet takes nothing back."""
        if self._written is None:
            about, emitted = self.about, dict(self._recorded)
            if self._emitted:
                emitted = dict(self._recorded | self._emitted)
            identity = [about.branch, about.coroutine, about.first, about.shape]
            written = self._write([0, emitted, identity])
            # A tab stands before what only the exact reader reads, such as half a surrogate pair.
            self._written = written.removeprefix(EXACT).removeprefix(b"[0")
        mine = max(self._mine.place, self._mine.reached)
        return LaneState(LANE + self.name, b"[%d%b" % (mine, self._written))

    def advance(self) -> None:
        """Count a used step, pause or child."""
        self._mine.place += 1
        self._all.place += 1
        self._progressed()

    def repeats(self, kind: str) -> bool:
        """Return whether the next update of a kind is one that an earlier run has published."""
        return (0 if self.once else self._emitted[kind]) < self._recorded[kind]

    def emit(self, kind: str, content: str = "") -> int:
        """Count an update; return its number among those of its kind.

        ``content`` decides whether it is the one that failed just before: that one keeps its
        number.
        """
        failed, number = self._unsent.pop(kind, ("", 0))
        if number and failed == content:
            return number
        self.advance()
        self._emitted[kind] = 1 if self.once else self._emitted[kind] + 1
        self._written = None
        return self._emitted[kind]

    def failed(self, kind: str, content: str, number: int) -> None:
        """Record that an update may not have been published."""
        self._unsent[kind] = (content, number)

    def refused(self, kind: str) -> None:
        """Take an update back that the server refused for good: a replay is refused again."""
        self._emitted[kind] -= 1
        self._written = None

    @property
    def is_due(self) -> bool:
        """Whether an earlier run was delivered something here."""
        if not self.deliveries:
            return False
        return self._diverged or self.deliveries[0].place <= self.place

    def due(self) -> Delivery | None:
        """Return what an earlier run was delivered here, once."""
        return self.deliveries.popleft() if self.is_due else None

    def withholds(self) -> bool:
        """Return whether what has arrived must wait: an earlier run came further without it."""
        if self._live or self.place >= self._progress.reached:
            return False
        now = monotonic()
        self._withheld_first = self._withheld_first or now
        if self._withheld_at != self.place:
            self._withheld_at, self._withheld_since = self.place, now
        if (
            now - self._withheld_since > _PATIENCE_S
            or now - self._withheld_first > _PATIENCE_S * _PATIENCES
        ):
            log.warning("a handler does not repeat what an earlier run did: it is steered at once")
            self._diverged = True
            self.go_live()
        return not self._live

    def passes(self) -> bool:
        """Return whether a wait ends at once, as it ended without an event before. Once here."""
        # Actions of other asyncio tasks do not prove that this wait ended.
        mine = self._mine
        if self._live or self._passed_at == mine.place or mine.place >= mine.reached:
            return False
        self._passed_at = mine.place
        return True

    def go_live(self) -> None:
        """Give it what arrives from now on, wherever it stands."""
        self._live = True
