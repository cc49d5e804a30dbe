"""A server that evicts what is stored once its memory is full: it is named before it does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.worker import AgentWorker
from tests.support.commands import cli
from tests.support.samples import admin
from tests.support.servers.faults import run_server, short_directory


@asynccontextmanager
async def server_with(policy: str) -> AsyncGenerator[tuple[RedisStateStore, Path]]:
    """Run a server that evicts by a policy; give a store, and the path of its socket."""
    with short_directory() as directory, run_server(directory, "--maxmemory-policy", policy) as url:
        socket = directory / "own.sock"
        await eventually(socket.exists, "the server listens")
        async with RedisStateStore.from_url(url) as store:
            yield store, socket


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
async def test_health_names_a_policy_under_which_the_server_evicts(policy: str) -> None:
    async with server_with(policy) as (store, _):
        health = await store.health()
        assert not health.ok
        assert health.problem is None
        (named,) = health.problems
        assert f"maxmemory-policy is {policy}" in named
        assert "noeviction" in named
        await admin(store, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        health = await store.health()
        assert (health.ok, health.problems) == (True, ())


async def test_the_command_says_so_in_its_output_and_its_status() -> None:
    async with server_with("allkeys-lru") as (_, socket):
        url = f"unix://{socket}"
        settings = Settings(url=SecretStr(url))
        ran = await cli(settings, "health", "--json")
        assert ran.status == 1
        found = json.loads(ran.out)
        assert found["ok"] is False
        assert "allkeys-lru" in found["problems"][0]
        ran = await cli(settings, "health")
        assert ran.status == 1
        assert "problems" in ran.out
        assert "allkeys-lru" in ran.out


async def test_a_user_who_may_not_run_info_has_a_server_whose_settings_are_unknown() -> None:
    async with server_with("allkeys-lru") as (store, socket):
        user = ("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
        await admin(store, *user)
        async with RedisStateStore.from_url(f"unix://app:secret@{socket}") as own:
            await own.save_memory_state("key", {"n": 1})
            health = await own.health()
            assert (health.ok, health.problem) == (True, None)
            assert (health.problems, health.details) == ((), {})


async def test_a_worker_warns_once_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno == logging.WARNING and "maxmemory-policy" in record.getMessage()
        ]

    async def nothing(_: Any) -> None: ...

    async with server_with("allkeys-lru") as (_, socket):
        settings = Settings(url=SecretStr(f"unix://{socket}"))
        worker = AgentWorker({"nothing": nothing}, settings=settings)
        serving = asyncio.create_task(worker.serve(handle_signals=False))
        await eventually(warnings, "the worker warns")
        serving.cancel()
        await asyncio.wait({serving})
    (warning,) = warnings()
    assert str(socket) in warning
