"""What is written by hand first: ``SET`` the task as JSON, ``XADD`` the update. Not atomic."""

from __future__ import annotations

import json

from benchmarks.measure import Operation
from benchmarks.peers.plain import connect
from benchmarks.samples import LOADED, SESSIONS, TASKS, plain_task, plain_update


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations; plain objects, without the models that the store reads and writes."""
    redis = connect(url)

    made = [plain_task(number) for number in range(TASKS)]

    async def save(number: int) -> None:
        place = number % TASKS
        await redis.set(f"naive:task:{place}", json.dumps(made[place]))
        await append(number)

    async def load(number: int) -> None:
        json.loads(await redis.get(f"naive:task:{number % LOADED}") or "")

    async def append(number: int) -> None:
        fields = {"data": json.dumps(plain_update(number))}
        await redis.xadd(f"naive:updates:{number % SESSIONS}", fields, maxlen=10_000)

    return {"append": append, "load": load, "save": save}
