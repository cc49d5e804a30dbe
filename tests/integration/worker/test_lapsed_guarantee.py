"""A server that cannot promise what the store asks for stops a worker for a while only."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import ConfigError
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, agent, client_of, serving
from tests.support.servers.faults import run_server, short_directory
from tests.support.timing import LONG_S


@pytest.mark.role("any", why="configures a server of its own")
async def test_a_worker_goes_on_and_no_result_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), list[int]()

    async def work(ctx: TaskContext) -> int:
        ran.append(ctx.input)
        begun.set()
        await go_on.wait()
        return int(ctx.input)

    with (
        short_directory() as directory,
        run_server(directory, "--appendonly", "yes", "--appendfsync", "always") as url,
    ):
        plain = make_settings(url, call_timeout_s=LONG_S)
        durable = make_settings(url, guarantee="durable", call_timeout_s=LONG_S)
        async with RedisStateStore(plain) as operator, client_of(operator) as client:
            ask = operator.transport.sender.send
            async with serving(agent(durable, {"h": work}, lease_s=LONG_S)) as worker:
                first = await client.submit("h", 1, session_id=SESSION)
                await begun.wait()
                await ask("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
                for kind in ("normal", "pubsub"):
                    await ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes", repeatable=True)
                await eventually(
                    lambda: "no tasks are taken from this server cannot promise" in caplog.text,
                    "the worker says what is wrong",
                    timeout_s=60,
                )
                go_on.set()
                second = await client.submit("h", 2, session_id=SESSION)
                # The handler returns meanwhile, and its result cannot be written.
                for _ in range(300):
                    await ask("PING", repeatable=True)
                assert not worker.done()
                await ask("CONFIG", "SET", "appendfsync", "always", repeatable=True)
                assert await client.result(SESSION, first, timeout_s=60) == 1
                assert await client.result(SESSION, second, timeout_s=60) == 2
            assert ran == [1, 2]
            # One that has not polled yet ends: a person has to change something.
            await ask("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
            with pytest.raises(ConfigError, match="cannot promise"):
                await agent(durable, {"h": work}).serve(handle_signals=False)
