"""What scripts are given: groups of keys and arguments, and how values are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

from redis_state.errors import InvalidField
from redis_state.models.version import Version
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.wire.resp import Argument

JOURNAL_BYTES = 4 << 20
"""A call returns no more entries of a journal once they have so many bytes: the server builds its
reply twice, and all other callers wait meanwhile."""
STARTED_BYTES = 64 << 10
"""So many bytes of a journal come with the start of a run: most journals are not longer."""
JOURNAL_PORTION = 16
"""So many entries are fetched at a time. Each may have 256 KB, and a reply may exceed its limit by
one such portion."""
JOURNAL_NAMES = 3_000
"""So many entries are named by a call at most: a serverless server takes no more arguments."""

# The topic of a row whose topic is the empty text: no UTF-8 text encodes to this byte.
_EMPTY_TOPIC = b"\xff"


def raw(text: str) -> bytes:
    """Write any text as bytes; lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def text_argument(text: str) -> Argument:
    """Write any text as an argument. ASCII, as most is, stays as it is."""
    return text if text.isascii() else raw(text)


def expecting(version: int | str | None) -> bytes:
    """Write which version a script shall find: with its write if that is known, b"" for any."""
    if version is None:
        return b""
    if isinstance(version, str):
        return version.encode()
    if isinstance(version, Version) and version.write:
        return raw(f"{version:d} {version.write}")
    return b"%d" % version


def topic_bytes(topic: str | None) -> bytes:
    """Write a topic as its rows carry it. None is no topic; empty text is one."""
    if topic is None:
        return b""
    return raw(topic) or _EMPTY_TOPIC


def topic_text(topic: bytes) -> str | None:
    """Read a topic as `topic_bytes` wrote it."""
    if topic == b"":
        return None
    return "" if topic == _EMPTY_TOPIC else topic.decode("utf-8", "surrogatepass")


def _spaced(words: Iterable[str]) -> str:
    return f" {' '.join(words)} "


def _given(text: str | None) -> bytes:
    return b"" if text is None else b"=" + raw(text)


def _topic(topic: str | None) -> bytes:
    """Write a topic that a caller has named. Errors: InvalidField when it is not text."""
    if topic is not None and not isinstance(topic, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("task_id", f"text is needed, not {type(topic).__name__}")
    return topic_bytes(topic)


# How the scripts' methods have a parameter written that its type alone does not say.
Topic: TypeAlias = Annotated[str | None, _topic]
Member: TypeAlias = Annotated[str, topic_bytes]
Expected: TypeAlias = Annotated[int | None, expecting]
Words: TypeAlias = Annotated[Iterable[str], _spaced]
Given: TypeAlias = Annotated[str | None, _given]


class Fence(NamedTuple):
    """The lease under which a worker writes: once another claim has it, writes are refused."""

    lease: str
    epoch: int
    owner: str

    @property
    def mark(self) -> bytes:
        """What a write carries: both, for a server whose history went back gives epochs twice."""
        return raw(f"{self.epoch}  {self.owner}")


class LaneState(NamedTuple):
    """Where a lane of a run stands, as the journal keeps it: the name of its entry, and JSON."""

    entry: str
    state: bytes


NO_LANE = LaneState("", b"")


class LogLimits(NamedTuple):
    """How long a log grows, and whether its rows are published as they come."""

    max_rows: int  # 0: any number
    ttl_ms: int
    announce: bool


class TaskKeys(NamedTuple):
    """The keys that the scripts of a task's life share; all in its session's slot."""

    task_id: Member
    task: str
    tasks: str
    lease: str
    journal: str

    @property
    def topic(self) -> str:
        """Return the topic of the task's updates."""
        return self.task_id


@dataclass(frozen=True, slots=True)
class Announcement:
    """Updates that announce a task's move, written in the same step."""

    log: LogKeys
    max_rows: int
    ttl_ms: int
    updates: Sequence[tuple[bytes, bytes]]

    @property
    def rows(self) -> str:
        """Return the key of the log's rows."""
        return self.log.rows

    @property
    def ids(self) -> str:
        """Return the key of the log's ids."""
        return self.log.ids

    @property
    def channel(self) -> str:
        """Return the log's channel."""
        return self.log.channel

    @property
    def row_id(self) -> bytes:
        """Return the update's id."""
        return self.updates[0][0]

    @property
    def row(self) -> bytes:
        """Return the update."""
        return self.updates[0][1]

    @property
    def other_id(self) -> bytes:
        """Return the id of the update in its place if the task does not move."""
        return self.updates[1][0]

    @property
    def other(self) -> bytes:
        """Return the update in its place if the task does not move."""
        return self.updates[1][1]

    @property
    def voted_id(self) -> bytes:
        """Return the id of the update in its place if a vote decides nothing; empty for none."""
        return self.updates[2][0] if len(self.updates) > 2 else b""  # noqa: PLR2004 - the third

    @property
    def voted(self) -> bytes:
        """Return the update in its place if a vote decides nothing; empty for none."""
        return self.updates[2][1] if len(self.updates) > 2 else b""  # noqa: PLR2004 - the third
