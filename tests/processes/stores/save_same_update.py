"""Save one update from many callers at once; print how many of them were the first."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, UpdateType


async def main(argument: dict[str, Any]) -> int:
    """Have ``callers`` callers save the update; count those told that it was new."""
    update = StateUpdate(
        session_id="session",
        task_id="task",
        update_id="the-same",
        update_type=UpdateType.RESULT,
        content={"from": argument["name"]},
    )
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        calls = [store.updates.save(update) for _ in range(argument["callers"])]
        return sum(await asyncio.gather(*calls))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
