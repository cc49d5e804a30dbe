"""A process that listens to many sessions: the store's way, or one connection each.

``python -m benchmarks.store.listeners <ours|connections> <url> <sessions>``. It prints that it is
ready, and after a line of input what it heard meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.measure import percentile
from benchmarks.peers.plain import connect
from benchmarks.samples import session_name
from redis_state import RedisStateStore

NAMESPACE = "listening"
_DEADLINE_S = 10.0
_SETTLE_S = 0.2


class Heard:
    """The delays of what was heard, in seconds."""

    def __init__(self, sessions: int) -> None:
        self.delays: list[float] = []
        self.listening: int = 0
        self.all_there: asyncio.Event = asyncio.Event()
        self._sessions = sessions
        self._awaited = 0
        self._all_heard: asyncio.Event = asyncio.Event()

    def there(self) -> None:
        """Count one listener that is ready."""
        self.listening += 1
        if self.listening == self._sessions:
            self.all_there.set()

    def hear(self, content: dict[str, Any]) -> None:
        """Note a message; the first of each listener only says that it listens."""
        if content["at"] == 0:
            self.there()
        else:
            self.delays.append(time.monotonic() - content["at"])
            if len(self.delays) == self._awaited:
                self._all_heard.set()

    async def heard(self, number: int) -> None:
        """Wait until so many messages were heard in all. Errors: TimeoutError."""
        self._awaited = number
        if len(self.delays) < number:
            self._all_heard.clear()
            async with asyncio.timeout(_DEADLINE_S):
                await self._all_heard.wait()


async def watch(store: RedisStateStore, session_id: str, heard: Heard) -> None:
    """Listen the store's way."""
    async for entry in store.watch_updates(session_id):
        heard.hear(entry.value.content)


async def block(redis: Any, key: str, heard: Heard) -> None:
    """Listen on a connection of one's own, as ``XREAD BLOCK`` asks for."""
    cursor: Any = "0"
    while True:
        found: list[Any] = await redis.xread({key: cursor}, block=60_000)
        for _, entries in found:
            for place, fields in entries:
                cursor = place
                # The row's values: its version, trace and kind come before the content.
                heard.hear(json.loads(fields[b"row"])[3])


async def main() -> None:
    """Listen until told to stop, then tell."""
    kind, url, number = sys.argv[1:]
    sessions = [f"listening-{session_name(each)}-{each}" for each in range(int(number))]
    heard = Heard(len(sessions))
    store = RedisStateStore.from_url(url, namespace=NAMESPACE, call_timeout_s=60)
    if kind == "ours":
        jobs = [asyncio.create_task(watch(store, name, heard)) for name in sessions]
    else:
        redis = connect(url, max_connections=len(sessions) + 8)
        keys = [store.updates.keys(name).rows for name in sessions]
        jobs = [asyncio.create_task(block(redis, key, heard)) for key in keys]
    async with asyncio.timeout(60):
        await heard.all_there.wait()
    # The last of them go back to waiting.
    await asyncio.sleep(1)
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        cpu, first = time.process_time(), len(heard.delays)
        print(json.dumps({"begun": True}), flush=True)
        if not (line := await loop.run_in_executor(None, sys.stdin.readline)):
            break
        await heard.heard(first + json.loads(line)["wrote"])
        # Whoever has heard asks for more: that is a part of hearing.
        await asyncio.sleep(_SETTLE_S)
        spent = time.process_time() - cpu
        delays = sorted(heard.delays[first:])
        told: dict[str, float] = {
            "heard": len(delays),
            "p50_us": percentile(delays, 0.5) * 1e6,
            "p99_us": percentile(delays, 0.99) * 1e6,
            "last_us": delays[-1] * 1e6,
            "cpu_us": spent / len(delays) * 1e6,
        }
        print(json.dumps(told), flush=True)
    for job in jobs:
        job.cancel()


if __name__ == "__main__":
    asyncio.run(main())
