"""Processes that kill themselves at each round trip of saving records and archiving them, in turn.

Like `die_archiving`: the save is part of what dies.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.testing import leaked_keys
from tests.processes.deaths.die_archiving import ArchiverDeath
from tests.processes.deaths.dying import COUNTED, die_at_each_trip
from tests.support.tasks.archived.archived_records import archive_records, problems_of, save_records


@dataclass
class RecordsCase:
    """One death: at which round trip, and what became of the records."""

    settings: Settings
    edge: str
    at: int

    async def die(self, stated: int) -> None:
        """Save and archive twice, and die on the way. To return is to survive."""
        ArchiverDeath(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store:
            COUNTED.set(True)
            await all_of_it(store)

    async def recover(self, _: int) -> list[str]:
        """Archive the rest; tell what is lost, or there twice. Then do all of it."""
        async with RedisStateStore(self.settings) as store:
            archive = open_archive(self.settings)
            # Who died before the first record was due has not prepared it.
            await archive.prepare()
            await archive_records(store, archive)
            problems = await problems_of(store, archive)
            await all_of_it(store)
            problems += await problems_of(store, archive, complete=True)
            await archive.aclose()
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]


async def all_of_it(store: RedisStateStore) -> None:
    """Save records and archive them, then later versions of them."""
    archive = open_archive(store.settings)
    for _ in range(2):
        await save_records(store)
        await archive_records(store, archive)
    await archive.aclose()


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each round trip, or at each ``stride``-th of them."""

    def case_at(at: int, namespace: str) -> RecordsCase:
        settings = Settings(
            url=SecretStr(argument["url"]),
            archive_url=SecretStr(argument["archive"]),
            archive_classes=frozenset(argument["classes"]),
            namespace=namespace,
        )
        return RecordsCase(settings, argument["edge"], at)

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
