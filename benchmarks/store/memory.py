"""Bytes of the server's memory per stored thing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.peers.ours import stored_event, task, update
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.samples import session_name, task_name, update_name
from benchmarks.server import BenchServer
from benchmarks.store.prepared import capture, pump
from redis_state import RedisStateStore

_AT_A_TIME = 5000


def measure_memory(run: Run) -> list[Row]:
    """Measure updates, audit events and tasks; in a full run a million updates."""
    return asyncio.run(_measure(run))


async def _measure(run: Run) -> list[Row]:
    written = len(update(0).model_dump_json())
    async with RedisStateStore.from_url(
        run.server.url, namespace="memory", call_timeout_s=60
    ) as store:

        async def save_update(number: int, sessions: int) -> None:
            await store.save_update(update(number, session_name(number % sessions)))

        async def save_event(number: int) -> None:
            await store.save_event(stored_event(number))

        async def save_task(number: int) -> None:
            await store.save_task(task(number))

        sessions = 5 if run.quick else 20
        run.tell(f"memory: {sessions} sessions of 1,000 updates")
        update_bytes = await _bytes(
            run, lambda number: save_update(number, sessions), sessions * 1000
        )
        rows = [
            row(
                f"bytes per update of {written} B as JSON, with its once-only id",
                update_bytes,
                "bytes",
                bar=(300.0, 260.0),
                most=True,
            )
        ]
        run.tell("memory: events and tasks")
        event_bytes = await _bytes(run, save_event, sessions * 1000)
        rows.append(row("bytes per audit event", event_bytes, "bytes"))
        rows.append(row("bytes per task", await _bytes(run, save_task, 1024), "bytes"))
    count = 20_000 if run.quick else 200_000
    run.tell(f"memory: {count:,} updates in sessions of 200")
    each = await asyncio.to_thread(_many, run.server, count)
    measure = f"memory per million updates, sessions of 200 ({count:,} measured)"
    rows.append(row(measure, each * 1_000_000 / (1 << 20), "MiB"))
    run.server.flush()
    return rows


def _many(server: BenchServer, count: int) -> float:
    own = (b"session-000000", update_name(0).encode(), task_name(0).encode())

    async def save(store: RedisStateStore) -> None:
        await store.save_update(update(0, "session-000000"))

    command = capture(save, namespace="memory", reply=[b"OK", 1, 1])
    server.flush()
    before = server.memory()
    pump(
        server,
        command,
        (
            command.naming(
                {
                    own[0]: b"session-%06d" % (number % (count // 200)),
                    own[1]: update_name(number).encode(),
                    own[2]: task_name(number % 8).encode(),
                }
            )
            for number in range(count)
        ),
    )
    return (server.memory() - before) / count


async def _bytes(run: Run, save: Callable[[int], Awaitable[None]], count: int) -> float:
    await save(0)  # the script and the connection's buffers are there from now on
    await asyncio.to_thread(run.server.flush)
    before = await asyncio.to_thread(run.server.memory)
    for start in range(0, count, _AT_A_TIME):
        numbers = range(start, min(start + _AT_A_TIME, count))
        await asyncio.gather(*(save(number) for number in numbers))
    return (await asyncio.to_thread(run.server.memory) - before) / count
