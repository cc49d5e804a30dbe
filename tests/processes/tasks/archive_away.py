"""Archive tasks one after the other, and have each expire, until none of those given is left."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.waiting import ArchiveList
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import all_due, let_expire
from tests.support.tasks.crash_states import send


async def main(argument: dict[str, Any]) -> None:
    """Move the tasks; print how many this process has had expire."""
    settings = Settings(
        url=SecretStr(argument["url"]),
        namespace=argument["namespace"],
        archive_url=SecretStr(argument["archive"]),
    )
    moved = 0
    async with RedisStateStore(settings) as store:
        archive = open_archive(settings)
        archiver = Archiver(store, archive)
        for task in argument["tasks"]:
            key = store.tasks.keys(SESSION, task).task
            await ArchiveList(store).enlist(SESSION, task)
            while await send(store, "HEXISTS", key, "archived") == 0:
                await all_due(store)
                await archiver.run_once()
            await let_expire(store, task)
            moved += 1
        await archive.aclose()
    sys.stdout.write(json.dumps(moved))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
