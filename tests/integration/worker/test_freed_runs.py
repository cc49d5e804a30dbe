"""The objects of a run are freed by their reference counts: none waits for the collector.

Of two kinds a ring is left, which only the collector finds: an error that passed an
`asyncio.TaskGroup` or `asyncio.gather`, and the iterators of stamina, which refer to no run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, TaskContext, retried
from tests.support.processes.pools import SESSION, becomes, open_token, pool

_SOON = RetryPolicy(attempts=3, wait_initial_s=0.001, wait_max_s=0.001, wait_jitter_s=0.001)


async def _nothing(_: TaskContext) -> None:
    """Return at once."""


async def _steps(ctx: TaskContext) -> None:
    for _ in range(3):
        await ctx.step("one", asyncio.sleep, 0)
    await ctx.keyed_step("keyed", "key", asyncio.sleep, 0)
    await ctx.progress("done")


async def _branches(ctx: TaskContext) -> None:
    async def part(branch: TaskContext) -> None:
        await branch.step("one", asyncio.sleep, 0)
        await branch.progress("done")

    await asyncio.gather(*(part(ctx.branch(f"part {n}")) for n in range(3)))


async def _pause(ctx: TaskContext) -> Any:
    return (await ctx.pause()).value


async def _sleep(ctx: TaskContext) -> None:
    await ctx.sleep(timedelta(seconds=1.1))


async def _child(ctx: TaskContext) -> Any:
    return await ctx.join(await ctx.spawn("nothing", None))


def _bad() -> None:
    raise ValueError("bad")


async def _fails(_: TaskContext) -> None:
    _bad()


async def _failed_step(ctx: TaskContext) -> None:
    await ctx.step("bad", _bad)


async def _handled_step(ctx: TaskContext) -> None:
    with pytest.raises(ValueError, match="bad"):
        await ctx.step("bad", _bad)


async def _retried_step(ctx: TaskContext) -> None:
    tries: list[int] = []

    def twice_bad() -> None:
        tries.append(1)
        if len(tries) < _SOON.attempts:
            _bad()

    await ctx.step("bad", retried(twice_bad, _SOON))


async def _registers(ctx: TaskContext) -> None:
    ctx.on_failure(_bad)


async def _undoes(ctx: TaskContext) -> None:
    ctx.on_failure(retried(_bad, _SOON), name="bad")
    _bad()


async def _takes(ctx: TaskContext) -> None:
    while not ctx.inbox.take():
        await ctx.step("wait", asyncio.sleep, 0.01)


async def _is_cancelled(_: TaskContext) -> None:
    await asyncio.Event().wait()


_HANDLERS: dict[str, Callable[[TaskContext], Awaitable[Any]]] = {
    "nothing": _nothing,
    "steps": _steps,
    "branches": _branches,
    "pause": _pause,
    "sleep": _sleep,
    "child": _child,
    "fails": _fails,
    "failed step": _failed_step,
    "handled step": _handled_step,
    "retried step": _retried_step,
    "registers": _registers,
    "undoes": _undoes,
    "takes": _takes,
    "is cancelled": _is_cancelled,
}


@pytest.fixture
def only_counts() -> Generator[None]:
    """Leave what is freed to reference counts; keep no error in a captured record of the log."""
    gc.collect()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


@pytest.mark.usefixtures("only_counts")
async def test_the_objects_of_a_run_are_freed_as_it_ends(store: RedisStateStore) -> None:
    made: defaultdict[str, list[weakref.ref[Any]]] = defaultdict(list)

    def noted(name: str) -> Callable[[TaskContext], Awaitable[Any]]:
        async def handler(ctx: TaskContext) -> Any:
            made[name] += map(weakref.ref, (ctx, ctx.inbox, asyncio.current_task()))
            return await _HANDLERS[name](ctx)

        return handler

    def left() -> list[str]:
        return [name for name, refs in made.items() if any(ref() is not None for ref in refs)]

    async with pool(store, {name: noted(name) for name in _HANDLERS}) as client:
        tasks = {name: await client.submit(name, None, session_id=SESSION) for name in _HANDLERS}
        await client.approve(await open_token(store, tasks["pause"]), "value")
        await becomes(client, tasks["is cancelled"], TaskStatus.RUNNING)
        await client.cancel(SESSION, tasks["is cancelled"], hard=True)
        event = SteeringEvent(
            session_id=SESSION,
            task_id=tasks["takes"],
            event_type=SteeringEventType.INJECT_CONTEXT,
            payload={"text": "now"},
            source="test",
        )
        await store.save_steering(event)
        for name, task in tasks.items():
            ended = await client.wait(SESSION, task, timeout_s=60)
            bad = {"fails": "FAILED", "failed step": "FAILED", "undoes": "FAILED"}
            assert ended.status.value == (bad | {"is cancelled": "CANCELLED"}).get(name, "COMPLETE")
        assert made.keys() == _HANDLERS.keys()
        assert len(made["pause"]) > 3, "a later run of the task, too"
        # What is to be freed is, as soon as the runs are over.
        with suppress(AssertionError):
            await eventually(lambda: not left(), "all are freed", timeout_s=5)
        assert not left()
