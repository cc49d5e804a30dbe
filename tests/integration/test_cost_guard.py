"""What an operation costs, counted and not timed: a doubling fails on any machine.

The bounds are about one and a half times what was counted when they were written. Raise one only
for something that is worth its cost; lower it when a change has made an operation cheaper.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from redis_state import RedisStateStore
from tests.samples import event as make_event
from tests.samples import task as make_task
from tests.samples import update as make_update

OPERATIONS = 64
ROUNDS = 4


@dataclass(frozen=True)
class Cost:
    """What one operation costs: calls in Python, commands in the server, bytes sent to it."""

    python_calls: float
    commands: float
    bytes_sent: float


Operation = Callable[[RedisStateStore, int], Awaitable[Any]]


async def append(store: RedisStateStore, number: int) -> None:
    await store.save_update(
        make_update(f"update-{number:08d}", {"message": "more", "step": number})
    )


async def event(store: RedisStateStore, number: int) -> None:
    await store.save_event(make_event(ts=float(number)))


async def save(store: RedisStateStore, number: int) -> None:
    await store.save_task(make_task(f"task-{number % 8}"))


async def load(store: RedisStateStore, number: int) -> None:
    assert await store.tasks.load("session", f"task-{number % 8}") is not None


async def idle_poll(store: RedisStateStore, _: int) -> None:
    cursor = await store.update_cursor("session")
    assert (await store.read_updates("session", after=cursor)).entries == []


async def newest(store: RedisStateStore, _: int) -> None:
    assert len(await store.list_updates("session", limit=5)) == 5


BOUNDS: dict[str, tuple[Operation, Cost]] = {
    "append": (append, Cost(205, 9, 565)),
    "event": (event, Cost(230, 4.7, 500)),
    "save": (save, Cost(230, 4.7, 1140)),
    "load": (load, Cost(170, 1.6, 225)),
    "idle poll": (idle_poll, Cost(235, 3, 190)),
    "newest": (newest, Cost(325, 3, 325)),
}


@pytest.mark.parametrize("name", BOUNDS)
async def test_an_operation_costs_no_more_than_it_did(name: str, store: RedisStateStore) -> None:
    operation, bound = BOUNDS[name]
    await asyncio.gather(*(append(store, number) for number in range(8)))
    await asyncio.gather(*(save(store, number) for number in range(8)))
    await operation(store, 0)  # the script is known from now on
    cost = await _cost(store, operation)
    print(name, cost)  # noqa: T201 - shown when it fails
    assert cost.python_calls <= bound.python_calls
    assert cost.commands <= bound.commands
    assert cost.bytes_sent <= bound.bytes_sent


async def test_the_guard_sees_a_doubling(store: RedisStateStore) -> None:
    async def twice(opened: RedisStateStore, number: int) -> None:
        await append(opened, number)
        await append(opened, number + 1_000_000)

    await append(store, 0)
    cost, bound = await _cost(store, twice), BOUNDS["append"][1]
    assert cost.python_calls > bound.python_calls
    assert cost.commands > bound.commands
    assert cost.bytes_sent > bound.bytes_sent


async def _cost(store: RedisStateStore, operation: Operation) -> Cost:
    """Count what an operation of many callers at once costs, each."""
    commands, sent = await _server_counts(store)
    calls = 0

    def count(_frame: FrameType, happened: str, _argument: Any) -> None:
        nonlocal calls
        calls += happened in ("call", "c_call")

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        for start in range(1, 1 + OPERATIONS * ROUNDS, OPERATIONS):
            numbers = range(start, start + OPERATIONS)
            await asyncio.gather(*(operation(store, number) for number in numbers))
    finally:
        sys.setprofile(former)
    commands_after, sent_after = await _server_counts(store)
    done = OPERATIONS * ROUNDS
    # The question itself, asked before, is counted by the answer to its repetition.
    return Cost(calls / done, (commands_after - commands) / done, (sent_after - sent) / done)


async def _server_counts(store: RedisStateStore) -> tuple[int, int]:
    """Return how many commands the server has run, those of scripts too, and bytes it has read."""
    ask = store.transport.sender.send
    info: bytes = await ask("INFO", "commandstats", repeatable=True)
    calls = [
        int(line.partition(b"calls=")[2].partition(b",")[0])
        for line in info.splitlines()
        if line.startswith(b"cmdstat_")
    ]
    stats: bytes = await ask("INFO", "stats", repeatable=True)
    fields = dict(line.split(b":", 1) for line in stats.splitlines() if b":" in line)
    return sum(calls), int(fields[b"total_net_input_bytes"])
