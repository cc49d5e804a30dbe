"""Save snapshots of a task that other processes save snapshots of too, and read them back."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import Snapshot


async def main(argument: dict[str, Any]) -> list[int]:
    """Save this process's versions; return those that were not there right after."""
    missed: list[int] = []
    async with RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store:
        for version in argument["versions"]:
            data = {"actor": argument["name"], "n": version}
            snapshot = Snapshot(
                f"{argument['name']}-{version}", argument["task"], version, data, version % 10 == 0
            )
            await store.snapshots.save(snapshot)
            found = await store.snapshots.get(argument["task"], version)
            listed = await store.snapshots.versions(argument["task"])
            if found != snapshot or version not in listed:
                missed.append(version)
    return missed


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
