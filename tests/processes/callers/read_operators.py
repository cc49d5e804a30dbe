"""Read what operators read, again and again, while tasks move; then until it is as it should be."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.worker import TaskClient
from tests.support.scripts.replies import clock_ms

# What a killed worker left of a paused task may be found as late as by the sweeper's longest round.
_DEADLINE_S = 90.0


async def sessions(client: TaskClient) -> dict[str, dict[str, int]]:
    """List all sessions, two a page; what a page repeats or has out of order is an error."""
    names: list[str] = []
    found: dict[str, dict[str, int]] = {}
    cursor = None
    while True:
        page = await client.sessions(limit=2, after=cursor)
        for each in page.sessions:
            names.append(each.session_id)
            found[each.session_id] = {s.value: many for s, many in each.counts.items() if many}
        cursor = page.cursor
        if cursor is None:
            break
    assert all(one < other for one, other in pairwise(names)), names
    return found


async def read(client: TaskClient, queue: str) -> dict[str, Any]:
    """Read everything once."""
    info = await client.queues.get(queue)
    counts = {status.value: many for status, many in (await client.count()).items() if many}
    found: list[str] = []
    cursor = None
    while True:
        page = await client.find(limit=20, after=cursor)
        found += [task.task_id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert max(Counter(found).values(), default=1) == 1
    return {
        "sessions": await sessions(client),
        "counts": counts,
        "found": len(found),
        "queue": [info.waiting, info.later, info.running],
    }


def _model(still: Path) -> Any:
    """Return what is to be read once all is still; None before."""
    return json.loads(still.read_text(encoding="utf-8")) if still.exists() else None


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Read while tasks move; then wait for the model, and tell of the oldest's age."""
    options = {"namespace": argument["namespace"]}
    reads = most = 0
    async with (
        RedisStateStore.from_url(argument["url"], **options) as store,
        TaskClient(store, queue=argument["queue"]) as client,
    ):
        while (model := _model(Path(argument["still"]))) is None:
            seen = await read(client, argument["queue"])
            assert all(many >= 0 for many in [*seen["queue"], *seen["counts"].values()]), seen
            reads, most = reads + 1, max(most, seen["found"])
            if reads == 1:
                print("reads", flush=True)  # noqa: T201
        deadline = time.monotonic() + _DEADLINE_S
        while (seen := await read(client, argument["queue"])) != model:
            assert time.monotonic() < deadline, f"{seen} is not {model}"
        before_ms = await clock_ms(store.base.scripts)
        oldest_ms = (await client.queues.get(argument["queue"])).oldest_s * 1000
        after_ms = await clock_ms(store.base.scripts)
    since_ms = [before_ms - oldest_ms, after_ms - oldest_ms]
    return {"reads": reads, "most": most, "since_ms": since_ms}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
