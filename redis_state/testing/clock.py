"""Settings of a store whose clock a test moves on, and when something is due by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import found_ended, time_of
from redis_state.serialization import codec
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.transport.clock import ms_of
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.waitpoints.deciders import pause_of
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key_of


class ClockSettings(Settings):
    """Settings whose clock tests move on, for each process of a test.

    The namespace begins with ``test-clock-``. A store with other settings refuses such a namespace,
    and a store with these refuses any other: ConfigError. So does a cluster, and a queue on a
    server of its own. They are read from arguments alone: no variable of the environment counts.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave out all but the arguments."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @property
    def has_test_clock(self) -> bool:
        """Tests move the clock."""
        return True


@dataclass(slots=True)
class Moment:
    """What a namespace does at a time: what keeps it busy, and when the next thing is due."""

    now_ms: int
    busy: set[str] = field(default_factory=set[str])
    next_ms: float | None = None

    def at(self, due_ms: float, what: str) -> None:
        """Take in that something is due at a time."""
        if due_ms <= self.now_ms:
            self.busy.add(f"{what} is due")
        elif self.next_ms is None or due_ms < self.next_ms:
            self.next_ms = due_ms


class Agenda:
    """Read what is due in a namespace, and move its clock on."""

    def __init__(self, store: RedisStateStore, queue: Queue, queues: Sequence[str]) -> None:
        self._store = store
        self._queue = queue
        self._queues = set(queues)
        self._keys = store.base.keys
        self._commands = store.transport.commands

    async def now_ms(self) -> int:
        """Read the time that was moved."""
        return ms_of(await self._commands.time())

    async def read(self) -> Moment:
        """Read what happens now, and when the next thing is due. Errors: BackendError."""
        moment = Moment(await self.now_ms())
        lists = [self._keys.watch(shard) for shard in range(WATCH_SHARDS)]
        schedules, *shards = await asyncio.gather(
            *(
                self._commands.zrange_scored(key, 0, -1)
                for key in (self._keys.schedules_due(), *lists)
            )
        )
        for schedule, due_ms in _scored(schedules):
            moment.at(due_ms, f"schedule {schedule!r}")
        # Nothing happens to what was found ended.
        watched = [
            (entry, time_of(score))
            for shard in shards
            for entry, score in _scored(shard)
            if not found_ended(score)
        ]
        await asyncio.gather(*(self._take_in(moment, *entry) for entry in watched))
        for name in sorted(self._queues):
            await self._read_queue(moment, name)
        return moment

    async def skip_to(self, until_ms: float) -> None:
        """Move the clock on to a time, unless it is later. Errors: BackendError."""
        shift = self._keys.test_clock()
        keys = [key async for key in self._aging() if key != shift]
        await self._store.base.scripts.skip_time(shift, others=keys, until_ms=round(until_ms))

    async def _aging(self) -> AsyncGenerator[str]:
        """List the keys that age. What shows that a process lives counts in real time."""
        workers = self._keys.workers().rpartition(":")[0]
        for server in await self._store.transport.each_primary():
            async for page in server.scan_all(f"{self._keys.namespace}:*"):
                for key in page:
                    name = key.decode("utf-8", "surrogatepass")
                    if not name.startswith(workers):
                        yield name

    async def _take_in(self, moment: Moment, entry: bytes, inspected_ms: float) -> None:
        """Take in when something happens to what an entry of the watch list stands for."""
        thing = codec.decode(entry)
        if pause_of(thing) is not None:
            moment.at(inspected_ms, "an escalation")
        match thing:
            case ["task", str(session_id), str(task_id)]:
                await self._take_in_task(moment, session_id, task_id, inspected_ms)
            case _:
                pass

    async def _take_in_task(
        self, moment: Moment, session_id: str, task_id: str, inspected_ms: float
    ) -> None:
        found = await self._store.tasks.look(session_id, task_id)
        if found is None or not found.ours or found.status.is_terminal:
            return
        self._queues.add(found.queue or self._queue.name)
        due_ms: float | None = None
        if found.status is TaskStatus.PAUSED:
            due_ms = await self._deadline_ms(session_id, task_id)
        elif found.is_orphan:
            due_ms = inspected_ms
        if due_ms is not None:
            # A sweeper acts, and not before it inspects the task.
            moment.at(max(due_ms, inspected_ms), f"task {task_id}")

    async def _deadline_ms(self, session_id: str, task_id: str) -> int | None:
        """Read until when a task is paused, None if no time ends that."""
        key = self._keys.task(session_id, task_id)
        found: list[Any] = await self._commands.hmget(
            key, "waits_for", "pause_token", "waits_until"
        )
        child, token, until = found
        if child:
            return None
        if token:
            name = token_key_of(self._store, session_id, token.decode())
            until = await self._commands.hget(name, "expires")
        return int(until) if until else None

    async def _read_queue(self, moment: Moment, name: str) -> None:
        # One call: what moves from one list to another meanwhile would be in none of them.
        reply = await self._queue.scripts.look_agenda(self._queue.keys(name))
        jobs, claims, turns, waits, paused = reply.facts
        for task, claimed in _scored(claims):
            moment.busy.add(f"task {task!r} runs since {claimed:.0f}")
        if paused:
            return
        for job, due_ms in [*_scored(jobs), *_scored(waits)]:
            moment.at(due_ms, f"job {job!r}")
        moment.busy |= {f"key {key!r} has its turn" for key, _ in _scored(turns)}


def _scored(flat: Sequence[bytes]) -> Iterator[tuple[bytes, float]]:
    return ((member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True))
