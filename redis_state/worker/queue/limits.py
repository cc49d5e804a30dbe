"""Limits of queues, shared by all processes: how many tasks run, of one key, and at which rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.stores.sessions.task_status import IN_TURN
from redis_state.transport.key_text import escape, unescape

OTHER_KEY = "k:"
# Of backfills: one at a time by itself, as IN_TURN. See `flow_may`.
BACKFILL = "b:"
# Between the line of a session and the limit key's in which it stands.
_STANDS_IN = ";"
_LONGEST_PERIOD = timedelta(days=7)


class _Keep(Enum):
    KEEP = "keep"


Keep = Literal[_Keep.KEEP]
KEEP: Keep = _Keep.KEEP


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a period of this length in the long run: all at once, or spread.

    It is a bucket, filled evenly. After an idle period it has all of its ``limit``, and gets one
    more in each ``per / limit``. So within one period up to twice the limit may be taken. Errors:
    InvalidField.
    """

    limit: int
    per: timedelta

    def __post_init__(self) -> None:
        """Refuse what no rate can be."""
        limits.count("limit", self.limit)
        is_period = isinstance(self.per, timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_period or not timedelta(milliseconds=1) <= self.per <= _LONGEST_PERIOD:
            raise InvalidField("per", "needs a timedelta from a millisecond to seven days")

    @property
    def written(self) -> str:
        """Write it as the queue's scripts read it."""
        return f"{self.limit} {math.ceil(self.per / timedelta(milliseconds=1))}"

    @classmethod
    def read(cls, written: str) -> Rate:
        """Read it as `written` wrote it. Errors: ValueError."""
        limit, period_ms = written.split(" ")
        return cls(int(limit), timedelta(milliseconds=int(period_ms)))


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What holds for one key in place of the queue's own ``per_key`` and ``rate``."""

    running: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it stands: what waits in it, what runs, and its limits.

    ``waiting`` tasks are due, ``later`` ones are put off. ``running`` ones are workers'.
    ``oldest_s`` is how long the oldest has been due: of the 32 without a key that are next, and of
    the next ones of 256 keys.
    ``workers`` is how many live ones take its tasks. ``limit`` is the most that run, ``per_key``
    the most of one key, ``rate`` how often tasks of one key may start.
    """

    name: str
    waiting: int
    later: int
    running: int
    oldest_s: float
    workers: int = 0
    paused: bool = False
    limit: int | None = None
    per_key: int | None = None
    rate: Rate | None = None
    keys: dict[str, KeyLimits] = field(default_factory=dict[str, KeyLimits])


def flow_key(limit_key: str | None, *, in_turn: str | None = None) -> str:
    """Write the key under which a task is limited; "" for none.

    ``in_turn`` is the session whose tasks run one at a time. Its line may stand in that of the
    ``limit_key``. Errors: InvalidField.
    """
    line = [] if in_turn is None else [IN_TURN + escape("session_id", in_turn)]
    return _STANDS_IN.join(line if limit_key is None else [*line, named_key(limit_key)])


def line_of(key: str) -> str:
    """Return the line in which the jobs of a key wait one behind the other."""
    return key.partition(_STANDS_IN)[0]


def key_in_session(key: str, session_id: str) -> str:
    """Return the key of a task that is copied to a session."""
    if not key.startswith(IN_TURN):
        return key
    line = flow_key(None, in_turn=session_id)
    return line + key.removeprefix(line_of(key))


def backfill_key(schedule_id: str) -> str:
    """Write the key of a schedule's backfills whose tasks run one at a time."""
    return BACKFILL + escape("schedule_id", schedule_id)


def named_key(key: str, *, field: str = "limit_key") -> str:
    """Write a key of the users' own. Errors: InvalidField."""
    if key == "":
        raise InvalidField(field, "needs text")
    return OTHER_KEY + escape(field, key)


def settings_of(
    *,
    running: int | Keep | None,
    per_key: int | Keep | None,
    rate: Rate | Keep | None,
    names: tuple[str, str, str] = ("limit", "per_key", "key_rate"),
) -> dict[str, bytes]:
    """Write limits as the settings of a queue: empty for one that is taken away."""
    written: dict[str, bytes] = {}
    for label, name, value in zip(
        ("running", "per_key", "rate"), names, (running, per_key, rate), strict=True
    ):
        if value is KEEP:
            continue
        if value is None:
            written[name] = b""
        elif label == "rate":
            if not isinstance(value, Rate):
                raise InvalidField("rate", "needs a Rate")
            written[name] = value.written.encode()
        else:
            written[name] = str(limits.count(label, value)).encode()
    return written


def read_limits(flat: list[bytes]) -> dict[str, Any]:
    """Read a queue's settings as the fields of `QueueInfo`."""
    found = {
        name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    keys: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        kind, colon, key = name.partition(":")
        if colon and kind in ("limit", "rate") and key.startswith(OTHER_KEY):
            its = keys.setdefault(unescape(key.removeprefix(OTHER_KEY)), {})
            its["running" if kind == "limit" else "rate"] = (
                int(value) if kind == "limit" else Rate.read(value)
            )
    return {
        "paused": found.get("paused") == "1",
        "limit": int(found["limit"]) if "limit" in found else None,
        "per_key": int(found["per_key"]) if "per_key" in found else None,
        "rate": Rate.read(found["key_rate"]) if "key_rate" in found else None,
        "keys": {key: KeyLimits(**its) for key, its in sorted(keys.items())},
    }
