"""The worker pool: how long until a handler runs, hears what it is told, and goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.driver import Contender
from benchmarks.measure import percentile
from benchmarks.pool_worker import QUEUE
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from redis_state import RedisStateStore
from redis_state.models import SteeringEventType, UpdateType
from redis_state.worker import TaskClient

_SESSION = "session"
_DEADLINE_S = 20.0


def measure_latencies(run: Run) -> list[Row]:
    """Measure a pool of one idle worker in a process of its own."""
    with Contender(run.server.url, QUEUE, module="benchmarks.pool_worker"):
        return asyncio.run(_measure(run))


async def _measure(run: Run) -> list[Row]:
    parts: list[tuple[str, Callable[[TaskClient], Awaitable[float]], tuple[float, float] | None]]
    parts = [
        ("submit to the handler's first instruction", submit, (25.0, 5.0)),
        ("steering write to handler", steer, None),
        ("approval to the handler going on", pause, None),
    ]
    rows: list[Row] = []
    store = RedisStateStore.from_url(run.server.url, namespace="pool-bench")
    async with store, TaskClient(store, queue=QUEUE) as client:
        await submit(client)
        for measure, part, bar in parts:
            run.tell(measure)
            try:
                took = sorted([await _idle(part, client) for _ in range(10 if run.quick else 50)])
            except TimeoutError:
                rows.append(missing(measure, "not within the deadline", failed=True))
                continue
            p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
            rows.append(row(f"{measure}, p50", p50 * 1000, "ms", bar=bar, most=True))
            rows.append(row(f"{measure}, p99", p99 * 1000, "ms"))
    return rows


async def _idle(part: Callable[[TaskClient], Awaitable[float]], client: TaskClient) -> float:
    # The pool still has to put the task before away.
    await asyncio.sleep(0.05)
    return await part(client)


async def submit(client: TaskClient) -> float:
    """Return the seconds from before the submission to the handler's first instruction."""
    before = time.monotonic()
    task_id = await client.submit("started", session_id=_SESSION)
    return await _moment(client, task_id) - before


async def steer(client: TaskClient) -> float:
    """Return the seconds from before the steering call to the handler having the event."""
    task_id = await client.submit("steered", session_id=_SESSION)
    await _update(client, task_id, UpdateType.PROGRESS)
    before = time.monotonic()
    await client.steer(_SESSION, task_id, SteeringEventType.USER_MESSAGE, {"text": "look at this"})
    return await _moment(client, task_id) - before


async def pause(client: TaskClient) -> float:
    """Return the seconds from before the approval to the handler going on."""
    task_id = await client.submit("paused", session_id=_SESSION)
    told = await _update(client, task_id, UpdateType.CHECKPOINT)
    before = time.monotonic()
    await client.approve(str(told["pause_id"]))
    return await _moment(client, task_id) - before


async def _moment(client: TaskClient, task_id: str) -> float:
    state = await client.wait(_SESSION, task_id, timeout_s=_DEADLINE_S)
    if state.error is not None:
        raise RuntimeError(f"the task ended as {state.status.value}: {state.error}")
    return float(state.result or "nan")


async def _update(client: TaskClient, task_id: str, kind: UpdateType) -> dict[str, object]:
    async with asyncio.timeout(_DEADLINE_S):
        async for entry in client.store.watch_updates(_SESSION, task_id=task_id):
            if entry.value.update_type is kind:
                content: dict[str, object] = entry.value.content
                return content
    raise RuntimeError("the watch ended")
