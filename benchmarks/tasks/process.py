"""The process of one engine: ``python -m benchmarks.tasks.process <name> <url>``.

Standard library only: an engine runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

CALLERS = 64
SLOTS = 64
SESSIONS = 500
_DEADLINE_S = 30.0


def used_cpu_s() -> float:
    """Tell how much CPU time this process has used, all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Marks:
    """What handlers have done since the worker began; the clocks at two of the counts.

    Between the two the worker is neither starting nor running dry.
    """

    first: int = 0
    last: int = 0
    done: int = 0
    clocks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    times: list[float] | None = None
    reached: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        """Count one task, or one step."""
        self.done += 1
        if self.times is not None:
            self.times.append(time.monotonic())
        if self.done in (self.first, self.last):
            self.clocks.append((time.perf_counter(), used_cpu_s()))
            if self.done == self.last:
                self.reached()


class Engine(Protocol):
    """An engine that runs tasks."""

    settings: str

    async def submit(self, handler: str, number: int) -> None:
        """Submit one task."""
        ...

    async def serve(self) -> None:
        """Work until cancelled."""
        ...


Prepare = Callable[[str, Marks], Awaitable[Engine]]


async def submit(engine: Engine, handler: str, count: int) -> dict[str, Any]:
    """Submit tasks by many callers at once."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await engine.submit(handler, number)

    begin, cpu_s = time.perf_counter(), used_cpu_s()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    seconds = time.perf_counter() - begin
    return {"count": count, "seconds": seconds, "cpu_s": used_cpu_s() - cpu_s}


async def drain(engine: Engine, marks: Marks, first: int, count: int) -> dict[str, Any]:
    """Work until so many marks after the first ones were made; more must be queued."""
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()
    marks.first, marks.last, marks.done = first, first + count, 0
    marks.clocks.clear()
    marks.reached = lambda: loop.call_soon_threadsafe(reached.set)
    serving = asyncio.create_task(engine.serve())
    waiting = asyncio.create_task(reached.wait())
    try:
        await asyncio.wait(
            {serving, waiting}, timeout=_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED
        )
        if serving.done() and not reached.is_set():
            serving.result()
        if not reached.is_set():
            raise TimeoutError(f"{marks.done} of {marks.last} within {_DEADLINE_S:g} s")
    finally:
        waiting.cancel()
        serving.cancel()
        await asyncio.wait({serving, waiting})
    (begin, cpu_before), (end, cpu_after) = marks.clocks
    return {"count": count, "seconds": end - begin, "cpu_s": cpu_after - cpu_before}


class Session:
    """Answers what the driver asks, one line of JSON each."""

    def __init__(self, engine: Engine, marks: Marks) -> None:
        self._engine = engine
        self._marks = marks
        self._serving: asyncio.Task[None] | None = None

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked."""
        doing = asked["do"]
        if doing == "submit":
            return await submit(self._engine, asked["handler"], asked["count"])
        if doing == "drain":
            return await drain(self._engine, self._marks, asked["first"], asked["count"])
        if doing == "serve":
            self._marks.times = []
            self._serving = asyncio.create_task(self._engine.serve())
            return {"serving": True}
        if doing == "stop" and self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            times, self._marks.times = self._marks.times, None
            return {"times": times}
        raise ValueError(f"what is {doing!r}?")


async def main() -> None:
    """Prepare the engine, and do what the standard input asks for until it ends."""
    name, url = sys.argv[1:]
    logging.disable(logging.WARNING)
    marks = Marks()
    prepare: Prepare = importlib.import_module(f"benchmarks.tasks.peers.{name}").prepare
    engine = await prepare(url, marks)
    # As `AgentWorker.run` does. All engines have it, so that no ratio is the collector's.
    gc.collect()
    gc.freeze()
    session = Session(engine, marks)
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": name, "settings": engine.settings}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            reply = await session.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    # Engines leave connections and threads behind, which would be waited for and warned about.
    os._exit(0)
