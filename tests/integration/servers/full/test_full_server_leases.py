"""A server that is out of memory: what is held stays held, and can be given back."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import StoreFull
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, pool
from tests.support.scripts.replies import ask, clock_ms
from tests.support.servers.faults import run_server, short_directory

LEASE = "{x}lease"


async def test_a_lease_is_read_renewed_and_given_back_on_a_full_server() -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore.from_url(url) as store:
            scripts = store.base.scripts
            leases = Leases(scripts, keep_ms=10_000)
            held = await leases.acquire(LEASE, duration_ms=2_000)
            assert held is not None
            # As if the clock had been set back by an hour since.
            ends = await clock_ms(scripts) + 3_600_000
            await ask(scripts, "HSET", LEASE, "expires", ends)
            await ask(scripts, "CONFIG", "SET", "maxmemory", 1)
            assert await leases.is_held(LEASE)
            assert int(await ask(scripts, "HGET", LEASE, "expires")) < ends
            await leases.renew(held, duration_ms=2_000)
            await leases.release(held)
            assert not await leases.is_held(LEASE)


async def test_what_a_run_found_is_written_once_the_server_has_memory_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish, refused, runs = TaskTransitions.finish_run, list[str](), list[int]()

    async def counted(self: TaskTransitions, *args: Any, **options: Any) -> None:
        try:
            await finish(self, *args, **options)
        except StoreFull as error:
            refused.append(str(error))
            raise

    async def fill(ctx: TaskContext) -> int:
        runs.append(ctx.attempt)
        await ask(ctx.store.base.scripts, "CONFIG", "SET", "maxmemory", 1)
        return 42

    monkeypatch.setattr(TaskTransitions, "finish_run", counted)
    with short_directory() as directory, run_server(directory) as url:
        async with (
            RedisStateStore.from_url(url) as store,
            pool(store, {"fill": fill}, lease_s=60) as client,
        ):
            task = await client.submit("fill", session_id=SESSION)
            await eventually(lambda: refused, "the end of the run is refused")
            await ask(store.base.scripts, "CONFIG", "SET", "maxmemory", 0)
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert (ended.status, ended.result, runs) == (TaskStatus.COMPLETE, 42, [1])
