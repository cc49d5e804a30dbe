"""What is written and read of a task of an A2A server, and what must hold for a write. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from redis_state.transport.key_text import escape

# Every time that a protobuf timestamp can hold is a number of so many digits after this.
_SHIFT_NS = 10**29
DIGITS = 30
_TIMELESS = "0" + "0" * DIGITS


class Phase(StrEnum):
    """What a task's state means for its subscribers."""

    OPEN = "o"
    WAITING = "w"
    ENDED = "e"
    GONE = "g"


@dataclass(frozen=True, slots=True)
class A2ALimits:
    """How much is kept of a task and for how long, and when its owner counts as dead.

    A limit of 0 is none. ``tombstone_ms`` is how long a deleted id stays refused.
    """

    active_ms: int
    finished_ms: int
    max_events: int
    max_bytes: int = 0
    max_configs: int = 0
    tombstone_ms: int = 0
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ref:
    """Which task: its scope and its id."""

    scope: str
    task_id: str

    @property
    def entry(self) -> bytes:
        """The task as the watch list has it."""
        return f"{self.scope}|{self.task_id}".encode("utf-8", "surrogatepass")

    @classmethod
    def of_entry(cls, entry: bytes) -> Ref:
        """Read the watch list's entry of a task."""
        scope, _, task_id = entry.decode("utf-8", "surrogatepass").partition("|")
        return cls(scope, task_id)


@dataclass(frozen=True, slots=True)
class Listing:
    """Where a task stands in its scope's list; a part that is ``=`` stays as it is."""

    context: str = "="
    state: str = "="
    time: str = "="

    @classmethod
    def at(cls, context: str, state: str, when_ns: int | None) -> Listing:
        """List a task under a context, a state and a time. Tasks without a time come last."""
        time = _TIMELESS if when_ns is None else place_in_time(when_ns)
        return cls(escape("context_id", context), escape("state", state), time)

    @classmethod
    def now(
        cls, context: str | None = None, state: str | None = None, *, newest: bool = True
    ) -> Listing:
        """List a task at the server's time; context and state stay for None.

        The ``newest`` comes before all others, also if the server's clock was set back.
        """
        return cls(
            "=" if context is None else escape("context_id", context),
            "=" if state is None else escape("state", state),
            "-" if newest else "+",
        )

    @property
    def bytes(self) -> bytes:
        """The listing as the script takes it."""
        return f"{self.context} {self.state} {self.time}".encode()


@dataclass(frozen=True, slots=True)
class Draft:
    """What a write changes of a task.

    Without a ``state`` state and phase stay as they are, and so does the owner's lease. An
    ``event`` of None gives the write no version. ``history`` and ``artifacts`` are appended.
    """

    state: str = ""
    phase: Phase = Phase.OPEN
    listing: Listing = field(default_factory=Listing)
    event: bytes | None = field(default=b"", repr=False)
    fields: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    history: Sequence[bytes] = field(default=(), repr=False)
    artifacts: Sequence[bytes] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class VersionStamp:
    """A version of a task: its number and when it was written. Both make its place in the log."""

    n: int
    at_ms: int

    @property
    def cursor(self) -> str:
        """The cursor that reads the events after this version."""
        return f"{self.n}-{self.at_ms}"

    def is_at(self, cursor: str) -> bool:
        """Return whether a cursor is after this version; one without a time is only a number."""
        return cursor in {self.cursor, f"{self.n}-0"}


@dataclass(frozen=True, slots=True)
class Written:
    """What a write gave: its version and the lease's epoch.

    ``before`` is the event of a call of the same id that wrote earlier; None for a new write.
    """

    version: VersionStamp
    epoch: int
    before: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class VersionedTask:
    """A task as it was read. ``owner`` is who works on it, ``left_ms`` of its lease.

    ``unannounced`` if it was ended because its server died, and that must still be announced.
    """

    version: VersionStamp
    state: str
    phase: Phase
    owner: str
    epoch: int
    left_ms: int
    fields: Mapping[str, bytes] = field(repr=False)
    history: Sequence[bytes] = field(default=(), repr=False)
    artifacts: Sequence[bytes] = field(default=(), repr=False)

    @property
    def body(self) -> bytes:
        """The field ``body``."""
        return self.fields.get("body", b"")

    @property
    def unannounced(self) -> bool:
        """Whether the task's end must still be announced."""
        return "announce" in self.fields

    @property
    def is_orphan(self) -> bool:
        """Whether it is worked on by a server that was silent for the length of a lease."""
        return self.phase is Phase.OPEN and self.owner != "" and self.left_ms <= 0


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which tasks to list, newest first. ``after`` is the place of the last one of a page.

    ``whole`` reads their bodies too.
    """

    context: str | None = None
    state: str | None = None
    since_ns: int | None = None
    after: str = ""
    size: int = 50
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Listed:
    """A page: ids, bodies if the request is for whole tasks, the place to read on after (empty: at
    the end).

    ``total`` counts all that match, ``others`` those of the same context in another state.
    """

    ids: list[str]
    bodies: list[bytes] = field(repr=False)
    after: str
    total: int
    others: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold for a write."""

    rule: str

    @classmethod
    def at(cls, version: VersionStamp) -> Rule:
        """Require the task to be at this version: its number, and when it was written.

        Of a version without a time the number is compared alone; 0 is absent.
        """
        return cls(f"{version.n} {version.at_ms}" if version.at_ms else str(version.n))

    @property
    def number(self) -> int:
        """The number of the version that the task must have."""
        return int(self.rule.partition(" ")[0])


ABSENT = Rule("0")
UNLESS_ENDED = Rule("open")
UNLESS_REVIVED = Rule("any")


def place_in_time(ns: int) -> str:
    """Write a time so that the order of texts is the order of times."""
    return f"1{ns + _SHIFT_NS:0{DIGITS}d}"
