"""How long operations take in this process, and what they cost it. Standard library only."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

Operation = Callable[[int], Awaitable[Any]]


@dataclass(frozen=True)
class Measured:
    """What one operation did in a stretch of time."""

    count: int
    seconds: float
    p50_us: float
    p99_us: float
    cpu_us: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.count / self.seconds


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def measure(
    operation: Operation, *, callers: int, seconds: float, first: int = 0
) -> tuple[Measured, int]:
    """Let so many callers repeat an operation for so long, each call with a number of its own.

    Returns also the next free number.
    """
    numbers = count(first)
    took: list[float] = []
    clock = time.perf_counter
    cpu, begin = time.process_time(), clock()
    end = begin + seconds

    async def caller() -> None:
        before = clock()
        while before < end:
            await operation(next(numbers))
            after = clock()
            took.append(after - before)
            before = after

    await asyncio.gather(*(caller() for _ in range(callers)))
    wall, spent = clock() - begin, time.process_time() - cpu
    took.sort()
    done = Measured(
        len(took),
        wall,
        percentile(took, 0.5) * 1e6,
        percentile(took, 0.99) * 1e6,
        spent / len(took) * 1e6,
    )
    return done, next(numbers)


async def answer(operations: Mapping[str, Operation]) -> None:
    """Measure what the standard input asks for, a line of JSON each; answer likewise."""
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": sorted(operations)}), flush=True)
    numbers: dict[str, int] = {}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked: dict[str, Any] = json.loads(line)
        try:
            name = asked["operation"]
            done, numbers[name] = await measure(
                operations[name],
                callers=asked["callers"],
                seconds=asked["seconds"],
                first=numbers.get(name, 0),
            )
            reply = asdict(done)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)
