"""Emit to a guard whose sink blocks for ever, and end without closing it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from redis_state.telemetry import GuardedSink


class Blocking:
    """Block the thread that calls."""

    async def emit(self, event: Any) -> None:
        """Block."""
        threading.Event().wait()


async def main() -> None:
    """Emit more than the guard can hold."""
    guard = GuardedSink(Blocking(), max_waiting=10)
    for number in range(100):
        await guard.emit(number)
    print(json.dumps({"dropped": guard.counts.dropped}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
