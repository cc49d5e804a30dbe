"""What an operation costs, counted and not timed: a doubling fails on any machine.

The bounds are about one and a half times what was counted when they were written. Raise one only
for something that is worth its cost; lower it when a change has made an operation cheaper.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

import pytest

from redis_state import RedisStateStore
from tests.support.samples import event as make_event
from tests.support.samples import task as make_task
from tests.support.samples import update as make_update
from tests.support.servers.sets.nodes import ask_each

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
    "append": (append, Cost(180, 4.7, 565)),
    "event": (event, Cost(210, 4.7, 500)),
    "save": (save, Cost(220, 4.7, 1140)),
    "load": (load, Cost(160, 1.6, 225)),
    "idle poll": (idle_poll, Cost(225, 3, 190)),
    "newest": (newest, Cost(325, 3, 325)),
}


# Nobody to share a command or a write with.
BOUNDS_ALONE: dict[str, tuple[Operation, Cost]] = {
    "append": (append, Cost(310, 7, 665)),
    "save": (save, Cost(340, 7.5, 1240)),
    "load": (load, Cost(280, 1.6, 225)),
}
# One after the other, each recorded before the next begins.
STEP = Cost(280, 8.5, 470)
# Each is heard alone, as a rule.
CALLS_PER_MESSAGE = 140


@pytest.mark.parametrize(
    ("name", "callers"),
    [*((name, OPERATIONS) for name in BOUNDS), *((name, 1) for name in BOUNDS_ALONE)],
)
async def test_an_operation_costs_no_more_than_it_did(
    name: str, callers: int, store: RedisStateStore
) -> None:
    operation, bound = (BOUNDS_ALONE if callers == 1 else BOUNDS)[name]
    await asyncio.gather(*(append(store, number) for number in range(8)))
    await asyncio.gather(*(save(store, number) for number in range(8)))
    await operation(store, 0)  # the script is known from now on
    cost = await _cost(store, operation, callers)
    print(name, callers, cost)  # noqa: T201 - shown when it fails
    assert cost.python_calls <= bound.python_calls
    assert cost.commands <= bound.commands
    assert cost.bytes_sent <= bound.bytes_sent


async def test_a_durable_step_costs_no_more_than_it_did(store: RedisStateStore) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    from redis_state.worker import TaskContext  # noqa: PLC0415 - needs the extra
    from tests.support.tasks.runs import make, run_once  # noqa: PLC0415

    found: list[Cost] = []

    async def handler(ctx: TaskContext) -> None:
        await ctx.step("work", int, 1)
        commands, sent = await _server_counts(store)
        with _Calls() as calls:
            for _ in range(OPERATIONS):
                await ctx.step("work", int, 1)
        commands_after, sent_after = await _server_counts(store)
        counted = (calls.count, commands_after - commands, sent_after - sent)
        found.append(Cost(*(count / OPERATIONS for count in counted)))

    await make(store)
    await run_once(store, handler)
    print("step", *found)  # noqa: T201 - shown when it fails
    assert found[0].python_calls <= STEP.python_calls
    assert found[0].commands <= STEP.commands
    assert found[0].bytes_sent <= STEP.bytes_sent


async def test_hearing_a_message_costs_no_more_than_it_did(store: RedisStateStore) -> None:
    async def write() -> None:
        async with RedisStateStore(store.settings) as other:
            for number in range(OPERATIONS):
                await append(other, number)

    calls = _Calls()
    async with asyncio.timeout(60), aclosing(store.watch_updates("session")) as heard:
        await append(store, 1_000_000)
        await anext(heard)
        # In a thread of its own: what writing costs is not counted.
        writing = asyncio.create_task(asyncio.to_thread(asyncio.run, write()))
        with calls:
            for _ in range(OPERATIONS):
                await anext(heard)
        await writing
    print("calls per message", calls.count / OPERATIONS)  # noqa: T201 - shown when it fails
    assert calls.count / OPERATIONS <= CALLS_PER_MESSAGE


async def test_the_guard_sees_a_doubling(store: RedisStateStore) -> None:
    async def twice(opened: RedisStateStore, number: int) -> None:
        await append(opened, number)
        await append(opened, number + 1_000_000)

    await append(store, 0)
    cost, bound = await _cost(store, twice), BOUNDS["append"][1]
    assert cost.python_calls > bound.python_calls
    assert cost.commands > bound.commands
    assert cost.bytes_sent > bound.bytes_sent


class _Calls:
    """Count the calls in Python of this thread, for the length of a block."""

    count = 0

    def __enter__(self) -> Self:
        self._former = sys.getprofile()
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._former)

    def _called(self, _frame: FrameType, happened: str, _argument: Any) -> None:
        self.count += happened in ("call", "c_call")


async def _cost(store: RedisStateStore, operation: Operation, callers: int = OPERATIONS) -> Cost:
    """Count what an operation of so many callers at once costs, each."""
    commands, sent = await _server_counts(store)
    calls, done = _Calls(), OPERATIONS * ROUNDS
    with calls:
        for start in range(1, 1 + done, callers):
            await asyncio.gather(*(operation(store, start + each) for each in range(callers)))
    commands_after, sent_after = await _server_counts(store)
    # The question itself, asked before, is counted by the answer to its repetition.
    return Cost(calls.count / done, (commands_after - commands) / done, (sent_after - sent) / done)


async def _server_counts(store: RedisStateStore) -> tuple[int, int]:
    """Return how many commands the servers have run, of scripts too, and bytes they have read."""
    infos: list[bytes] = await ask_each(store.transport, "INFO", "commandstats")
    calls = [
        int(line.partition(b"calls=")[2].partition(b",")[0])
        for info in infos
        for line in info.splitlines()
        if line.startswith(b"cmdstat_")
    ]
    stats: list[bytes] = await ask_each(store.transport, "INFO", "stats")
    read = [
        int(line.partition(b":")[2])
        for each in stats
        for line in each.splitlines()
        if line.startswith(b"total_net_input_bytes:")
    ]
    return sum(calls), sum(read)
