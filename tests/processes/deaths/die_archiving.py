"""Workers that kill themselves at each round trip of archiving in turn, to Redis and the archive.

Like `die_at_round_trip`: this one forks for each part.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.parquet.files.objects import FolderObjects
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from redis_state.testing import leaked_keys
from redis_state.worker.tasks.move_parts import watch_entry
from tests.processes.deaths.dying import COUNTED, Death, die_at_each_trip, fork, join, uncounted
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import (
    all_due,
    archive_all,
    archived,
    archived_rows,
    ended,
    expected,
    live_rows,
)
from tests.support.tasks.crash_states import close_queues, make_due, sweeper_of, unmark

# Each is made for all 16 shards: one of them stands for all.
_SHARDED = frozenset({"claim_due", "find_tasks", "list_claims", "ZCARD", "ZRANGE"})


@dataclass
class ArchiverDeath(Death):
    """Kill this process at its n-th round trip, whichever server it goes to."""

    sharded: Counter[str] = field(default_factory=Counter[str])

    def plant(self) -> None:
        """Count what goes to the archive too: waits for PostgreSQL, calls of a folder."""
        super().plant()
        wait = psycopg.AsyncConnection.wait

        async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
            if not self._reached("postgres"):
                return await wait(connection, *arguments, **options)
            self._die_if("before")
            found = await wait(connection, *arguments, **options)
            self._die_if("after")
            return found

        connecting: Any = psycopg.AsyncConnection
        connecting.wait = watched
        for name in ("get", "open", "create", "names", "delete"):
            setattr(FolderObjects, name, self._watched(getattr(FolderObjects, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if not self._reached("files"):
                return call(*arguments, **options)
            self._die_if("before")
            found = call(*arguments, **options)
            self._die_if("after")
            return found

        return watched

    def _reached(self, name: str) -> bool:
        if name in _SHARDED:
            self.sharded[name] += 1
            if self.sharded[name] % 16 != 1:
                return False
        return super()._reached(name)


@dataclass
class ArchivingCase:
    """One death: at which round trip, and what became of the tasks."""

    settings: Settings
    edge: str
    at: int
    tasks: list[str] = field(default_factory=list[str])

    async def prepare(self, _: int) -> list[str]:
        """Have two tasks end that no sweeper has looked at."""
        archive = open_archive(self.settings)
        await archive.prepare()
        await archive.aclose()
        async with RedisStateStore(self.settings) as store:
            tasks = [await ended(store), await ended(store, TaskStatus.FAILED)]
            # Of one the call that marks its entry was lost.
            await unmark(store, watch_entry(SESSION, tasks[1]))
            return tasks

    async def die(self, stated: int) -> None:
        """Sweep and archive, and die on the way. To return is to survive."""
        ArchiverDeath(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store:
            COUNTED.set(True)
            await _all_of_it(store, self.tasks)

    async def recover(self, _: int) -> list[str]:
        """Do the rest; tell what is lost, or there twice."""
        async with RedisStateStore(self.settings) as store:
            await _all_of_it(store, self.tasks)
            archive = open_archive(self.settings)
            problems: list[str] = []
            if await archived(archive) != await expected(store, *self.tasks):
                problems.append("the tasks differ")
            if await archived_rows(archive) != await live_rows(store):
                problems.append("the updates differ")
            for task in self.tasks:
                key = store.tasks.keys(SESSION, task).task
                if not await store.transport.commands.hexists(key, "archived"):
                    problems.append("a task is not marked")
            if (await ArchiveList(store).backlog()).oldest_s:
                problems.append("something waits")
            await archive.aclose()
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]


async def _all_of_it(store: RedisStateStore, tasks: list[str]) -> None:
    """Look at each task twice, as sweepers do, then archive all that waits."""
    archive = open_archive(store.settings)
    sweeper = sweeper_of(store, archiving=True)
    for _ in range(2):
        with uncounted():
            for task in tasks:
                await make_due(store, watch_entry(SESSION, task))
        await sweeper.run_once()
    with uncounted():
        await all_due(store)
    await archive_all(store, archive, Archiver(store, archive))
    await archive.aclose()
    await close_queues()


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each round trip, or at each ``stride``-th of them."""

    def case_at(at: int, namespace: str) -> ArchivingCase:
        settings = Settings(
            url=SecretStr(argument["url"]),
            archive_url=SecretStr(argument["archive"]),
            namespace=namespace,
        )
        case = ArchivingCase(settings, argument["edge"], at)
        status, case.tasks = join(*fork(case.prepare))
        assert status == 0, case.tasks
        return case

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
