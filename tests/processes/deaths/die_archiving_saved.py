"""Processes that kill themselves at each round trip of saving tasks of a host and archiving them.

Like `die_archiving_records`: the save is part of what dies.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.testing import leaked_keys
from tests.processes.deaths.die_archiving import ArchiverDeath
from tests.processes.deaths.dying import COUNTED, die_at_each_trip
from tests.support.tasks.archived.saved_tasks import archive_saved, problems_of_saved, save_and_end


@dataclass
class SavedCase:
    """One death: at which round trip, and what became of the tasks."""

    settings: Settings
    edge: str
    at: int

    async def die(self, stated: int) -> None:
        """Save and archive twice, and die on the way. To return is to survive."""
        ArchiverDeath(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store:
            COUNTED.set(True)
            for _ in range(2):
                await save_and_end(store)
                await archive_saved(store)

    async def recover(self, _: int) -> list[str]:
        """Archive the rest; tell what is lost, or there twice. Then do all of it."""
        async with RedisStateStore(self.settings) as store:
            await archive_saved(store)
            problems = await problems_of_saved(store)
            await save_and_end(store)
            await archive_saved(store)
            problems += await problems_of_saved(store, complete=True)
        return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each round trip, or at each ``stride``-th of them."""

    def case_at(at: int, namespace: str) -> SavedCase:
        settings = Settings(
            url=SecretStr(argument["url"]),
            archive_url=SecretStr(argument["archive"]),
            namespace=namespace,
        )
        return SavedCase(settings, argument["edge"], at)

    return die_at_each_trip(argument, case_at)


if __name__ == "__main__":
    os.environ.setdefault("PGCONNECT_TIMEOUT", "20")
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
