"""A server that cannot promise what the store asks for stops a worker for a while only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError
from redis_state.models import UpdateType
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.processes.pools import SESSION, agent, client_of, serving, updates_of
from tests.support.servers.faults import run_server, short_directory
from tests.support.timing import LONG_S

pytestmark = pytest.mark.role("any", why="configures a server of its own")


class Lapsing:
    """A server whose guarantee lapses, and is mended."""

    def __init__(self, url: str, store: RedisStateStore, client: TaskClient) -> None:
        self.url, self.store, self.client = url, store, client
        self.ask: Any = store.transport.sender.send

    def durable(self, **options: Any) -> Settings:
        return make_settings(self.url, guarantee="durable", **options)

    async def lapse(self) -> None:
        """Sync no write any more before its answer, and end all connections."""
        await self.ask("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
        for kind in ("normal", "pubsub"):
            await self.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", repeatable=True)

    async def mend(self) -> None:
        await self.ask("CONFIG", "SET", "appendfsync", "always", repeatable=True)

    async def more_connections(self, count: int) -> None:
        """Wait until so many were refused: each sender connects again and again."""
        known = await self._connections()

        async def are_made() -> bool:
            return await self._connections() >= known + count

        await eventually(are_made, "the worker tries to connect", timeout_s=60)

    async def _connections(self) -> int:
        stated: bytes = await self.ask("INFO", "stats", repeatable=True)
        return int(stated.partition(b"total_connections_received:")[2].split()[0])


@asynccontextmanager
async def lapsing() -> AsyncGenerator[Lapsing, None]:
    with (
        short_directory() as directory,
        run_server(directory, "--appendonly", "yes", "--appendfsync", "always") as url,
    ):
        plain = make_settings(url, call_timeout_s=LONG_S)
        async with RedisStateStore(plain) as operator, client_of(operator) as client:
            yield Lapsing(url, operator, client)


async def test_a_worker_goes_on_and_no_result_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), list[int]()

    async def work(ctx: TaskContext) -> int:
        ran.append(ctx.input)
        begun.set()
        await go_on.wait()
        return int(ctx.input)

    async with lapsing() as server:
        client, durable = server.client, server.durable(call_timeout_s=1.0)
        async with serving(agent(durable, {"h": work}, lease_s=LONG_S)) as worker:
            first = await client.submit("h", 1, session_id=SESSION)
            await begun.wait()
            await server.lapse()
            await eventually(
                lambda: "this server cannot promise guarantee='durable'" in caplog.text,
                "the worker says what is wrong",
                timeout_s=60,
            )
            go_on.set()
            second = await client.submit("h", 2, session_id=SESSION)
            # The handler returns meanwhile, and its result cannot be written.
            await server.more_connections(3)
            assert not worker.done()
            await server.mend()
            assert await client.result(SESSION, first, timeout_s=60) == 1
            assert await client.result(SESSION, second, timeout_s=60) == 2
        assert ran == [1, 2]
        # One that has not polled yet ends: a person has to change something.
        await server.ask("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
        caplog.clear()
        refused = asyncio.create_task(agent(durable, {"h": work}).serve(handle_signals=False))
        await asyncio.wait({refused})
        # Before the host looks at the task, if it ever does.
        assert "this worker does not serve: this server cannot promise" in caplog.text
        with pytest.raises(ConfigError, match="cannot promise"):
            await refused


async def test_what_a_handler_records_meanwhile_waits_until_the_server_is_mended() -> None:
    begun, go_on, calling = asyncio.Event(), asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def step(name: str) -> str:
        done.append(name)
        return name

    async def work(ctx: TaskContext) -> list[str]:
        first = await ctx.step("first", step, "first")
        begun.set()
        await go_on.wait()
        calling.set()
        await ctx.emit(UpdateType.PROGRESS, {"part": "second"})
        second = await ctx.step("second", step, "second")
        return [first, second]

    async with lapsing() as server:
        client = server.client
        worker = agent(server.durable(call_timeout_s=LONG_S), {"h": work}, lease_s=LONG_S)
        async with serving(worker):
            task = await client.submit("h", None, session_id=SESSION)
            await begun.wait()
            await server.lapse()
            # The calls that the loops of the worker make meanwhile have met the refusal.
            await server.more_connections(3)
            go_on.set()
            await calling.wait()
            await server.more_connections(3)
            await server.mend()
            assert await client.result(SESSION, task, timeout_s=60) == ["first", "second"]
        assert done == ["first", "second"]
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.attempts, view.crashes) == (1, 0)
        emitted = [each.content for each in await updates_of(server.store, task)]
        assert emitted.count({"part": "second"}) == 1
