"""The registry of workers: each keeps a record of its own, which shows that it lives and what it
does.

The record expires three intervals after its last renewal, so a killed worker soon disappears. A
worker that stops removes its record. Leases decide who runs a task, never these records. They are
for people, and say whether a handler that one worker lacks is a wrong name.

With its record a worker writes which handlers it has. That is remembered for longer than the record
lives: a pool that was cut off from its server, or is restarting, has them again soon.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from redis_state import __version__
from redis_state.errors import BackendError
from redis_state.primitives.record import Place, Stored, new_write_id
from redis_state.scripts import topic_text
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.transport.key_text import escape
from redis_state.worker.observe.stats import WorkerStats, stale_writes_refused

log: logging.Logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
# A worker looks at its queues many times a second. What holds it up for longer than this is no
# reply that is merely late.
_STALLED_S = 10.0
_LIVES = 3
_MOST_IDS = 100
# How long a handler is remembered that no live worker has any more: longer than a failover, a
# restart of the server, or a rollout takes.
REMEMBERED_MS = 600_000
_MOST_SERVED = 10_000


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker process as it last described itself, and when, by the server's clock.

    ``running`` are session and task of its runs, a hundred at most. ``running_count`` is their
    number. ``counters`` count since its start: started, completed, failed, cancelled, paused,
    handed_over, dropped, unwritten, taken_over, lease_lost, stale_writes_refused. ``last_poll_ms``
    is when it last polled its queues, ``unpolled_s`` the time since then. Both are None under arq's
    own command, which does not report it. ``versions`` are those of the handlers that have some.
    """

    name: str
    instance: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    max_tasks: int
    heartbeat: str
    draining: bool
    running_count: int
    running: tuple[tuple[str, str], ...]
    counters: Mapping[str, int]
    started_ms: int
    last_seen_ms: int
    silent_s: float
    last_poll_ms: int | None = None
    unpolled_s: float | None = None
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    @property
    def stalled(self) -> bool:
        """Whether it takes no tasks although it lives: it had not looked at its queues for 10 s."""
        return self.unpolled_s is not None and self.unpolled_s - self.silent_s > _STALLED_S


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a worker process says of itself once and for all."""

    name: str
    queues: Sequence[str]
    handlers: Sequence[str]
    max_tasks: int
    heartbeat: str
    versions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


class WorkerRecord:
    """A worker's own record, from its start to its stop."""

    def __init__(
        self,
        store: RedisStateStore,
        about: WorkerIdentity,
        stats: WorkerStats,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._store = store
        self._about = about
        self._stats = stats
        self._interval_s = interval_s
        # Two workers of one name, the next pod of a rolling deployment say, are two.
        self._instance = secrets.token_hex(4)
        self._member = f"{about.name}#{self._instance}"
        keys = store.base.keys
        self._key = keys.worker(self._member)
        self._place = Place(keys.workers(), self._member)
        self._served = keys.served()
        self._names = [_served(queue, name) for queue in about.queues for name in about.handlers]
        # When it was last written; and since when again, if there was a gap.
        self._written_s: float | None = None
        self._since_s: float | None = None
        self._failed = False

    @property
    def is_steady(self) -> bool:
        """Whether this worker's record has stood for long enough to judge that others have none.

        After an outage the others may not have written theirs again. They have as long for that as
        a record lives.
        """
        life_s = self._ttl_ms / 1000
        began_again = self._since_s is not None and monotonic() - self._since_s <= life_s
        return not (self._has_gap() or began_again)

    def _has_gap(self) -> bool:
        """Return whether the record could not be written, or was not for longer than it lives."""
        last_s = self._written_s
        return self._failed or (last_s is not None and monotonic() - last_s > self._ttl_ms / 1000)

    async def keep(self) -> None:
        """Publish the record at each interval until cancelled. An outage is waited out."""
        while True:
            await self.say()
            await asyncio.sleep(self._interval_s)

    async def say(self) -> None:
        """Publish the record once. Does nothing if the server is unreachable."""
        try:
            await self._store.base.scripts.save_worker(
                self._key,
                index=self._place.index,
                served=self._served,
                write=new_write_id(),
                ttl_ms=self._ttl_ms,
                member=self._member,
                document=self._document(),
                remember_ms=REMEMBERED_MS,
                most=_MOST_SERVED,
                # What it has is remembered for when it is back, or another takes its place.
                names=[] if self._stats.draining else self._names,
            )
        except BackendError as error:
            self._failed = True
            log.debug("this worker's record could not be written: %s", error)
        else:
            gap = self._has_gap()
            self._failed, self._written_s = False, monotonic()
            if gap:
                self._since_s = self._written_s

    async def withdraw(self) -> None:
        """Take the record away, because the worker stops."""
        with suppress(BackendError):
            await self._store.base.records.delete(self._key, place=self._place)

    @property
    def _ttl_ms(self) -> int:
        return round(_LIVES * self._interval_s * 1000)

    def _document(self) -> bytes:
        about, stats = self._about, self._stats
        running = stats.running
        refused = stale_writes_refused(self._store.base.scripts.lost)
        return codec.encode(
            {
                "name": about.name,
                "instance": self._instance,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": __version__,
                "queues": list(about.queues),
                "handlers": list(about.handlers),
                "versions": {name: list(known) for name, known in about.versions.items()},
                "max_tasks": about.max_tasks,
                "heartbeat": about.heartbeat,
                "draining": stats.draining,
                "running_count": len(running),
                "running": [[run.session_id, run.task_id] for run in running[:_MOST_IDS]],
                "counters": stats.counters() | {"stale_writes_refused": refused},
                "ttl_ms": self._ttl_ms,
                "unpolled_ms": None if stats.polls is None else round(stats.polls.age_s() * 1000),
            }
        )


class WorkerRegistry:
    """The workers of a namespace, from any process."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store

    async def was_served(self, queue: str, handler: str) -> bool:
        """Return whether a worker of a queue had a handler within ten minutes.

        Errors: BackendUnavailable.
        """
        base = self._store.base
        commands = base.scripts.transport.commands
        clock = commands.time()
        at_ms = await commands.zscore(base.keys.served(), _served(queue, handler))
        now_ms = ms_of(await clock)
        # One of before the server's clock was set back is of any age.
        return at_ms is not None and float(at_ms) >= now_ms - REMEMBERED_MS

    async def page(
        self, *, limit: int | None = None, after: str | None = None
    ) -> tuple[list[WorkerInfo], str | None]:
        """Return live workers, by name; and the place of the last one if others follow.

        The records of the page alone are read. ``after`` is such a place.
        """
        base = self._store.base
        commands = base.scripts.transport.commands
        index = base.keys.workers()
        clock = commands.time()
        flat: Sequence[bytes] = await commands.zrange_scored(index, 0, -1)
        now_ms = ms_of(await clock)
        listed = sorted((topic_text(name) or "", float(until)) for name, until in _pairs(flat))
        rest = [each for each in listed if after is None or each[0] > after]
        members = rest[:limit]
        last = members[-1][0] if len(members) < len(rest) else None
        records = [(name, until, base.fetch(base.keys.worker(name))) for name, until in members]
        found: list[WorkerInfo] = []
        for name, until_us, record in records:

            def read(stored: Stored, until_us: float = until_us) -> WorkerInfo:
                return _read(stored, until_us=until_us, now_ms=now_ms)

            info = await base.read_record("workers", f"worker {name}", record, read)
            if info is not None:
                found.append(info)
        return found, last

    async def list(self) -> list[WorkerInfo]:
        """Return the live workers, by name. Errors: BackendUnavailable.

        A killed worker is listed until three of its intervals have passed: see ``silent_s``.
        """
        return (await self.page())[0]


def count_serving(workers: Sequence[WorkerInfo]) -> Counter[str]:
    """Count the workers of each queue, without those that take no more tasks."""
    serving: Counter[str] = Counter()
    for info in workers:
        serving.update(dict.fromkeys(info.queues, int(not info.draining)))
    return serving


def _served(queue: str, handler: str) -> str:
    return f"{escape('queue', queue)} {escape('handler', handler)}"


def _pairs(flat: Sequence[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _read(record: Stored, *, until_us: float, now_ms: int) -> WorkerInfo:
    stated: dict[str, Any] = as_object(record.fields["document"])
    last_seen_ms = int(until_us) // 1000 - int(stated["ttl_ms"])
    # An earlier version's record has none.
    unpolled_ms: int | None = stated.get("unpolled_ms")
    last_poll_ms = None if unpolled_ms is None else last_seen_ms - unpolled_ms
    return WorkerInfo(
        name=stated["name"],
        instance=stated["instance"],
        host=stated["host"],
        pid=stated["pid"],
        version=stated["version"],
        queues=tuple(stated["queues"]),
        handlers=tuple(stated["handlers"]),
        versions=stated.get("versions", {}),
        max_tasks=stated["max_tasks"],
        heartbeat=stated["heartbeat"],
        draining=stated["draining"],
        running_count=stated["running_count"],
        running=tuple((session, task) for session, task in stated["running"]),
        counters=stated["counters"],
        started_ms=record.order // 1000,
        last_seen_ms=last_seen_ms,
        silent_s=max(0.0, (now_ms - last_seen_ms) / 1000),
        last_poll_ms=last_poll_ms,
        unpolled_s=None if last_poll_ms is None else max(0.0, (now_ms - last_poll_ms) / 1000),
    )
