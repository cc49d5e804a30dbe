"""A gateway without the key of a payload says so: no client gets a text in the payload's place."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")
import httpx

from redis_state import RedisStateStore, Sealed, Settings
from redis_state.errors import PayloadUnreadable, TaskFailed
from redis_state.gateway import create_gateway
from redis_state.http_client import HttpTaskClient
from redis_state.worker import TaskContext
from tests.support.http.gateway import tokens
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import SESSION, pool

SHOWN = "<encrypted>"


@asynccontextmanager
async def http_of(store: RedisStateStore) -> AsyncGenerator[HttpTaskClient]:
    gateway = create_gateway(store, auth=tokens)
    transport, token = httpx.ASGITransport(gateway), tokens.mint("ann", ["admin:*"])
    async with HttpTaskClient("http://gateway", token, transport=transport) as http:
        yield http
    await gateway.aclose()


async def echo(ctx: TaskContext) -> Any:
    await ctx.step("echo", lambda: ctx.input)
    if ctx.input == "bad":
        raise ValueError("no luck")
    return ctx.input


async def test_what_the_gateway_cannot_read_is_an_error_and_no_text(settings: Settings) -> None:
    async with (
        opened(settings, KEYS[0]) as store,
        opened(settings) as blind_store,
        http_of(store) as http,
        http_of(blind_store) as blind,
        pool(store, {"echo": echo}) as client,
    ):
        for given in ("secret", "bad", SHOWN):
            task = await client.submit("echo", given, session_id=SESSION, task_id=given)
            await client.wait(SESSION, task, timeout_s=60)
        assert await http.result(SESSION, "secret") == "secret"
        assert await http.result(SESSION, SHOWN) == SHOWN
        with pytest.raises(TaskFailed, match="no luck"):
            await http.result(SESSION, "bad")

        state = await blind.get(SESSION, "secret")
        assert state is not None
        assert type(state.result) is Sealed
        assert str(state.result) == SHOWN
        lacking = "it is encrypted under a key that the gateway does not have"
        with pytest.raises(PayloadUnreadable, match=f"result of task 'secret' .*: {lacking}"):
            await blind.result(SESSION, "secret")
        with pytest.raises(PayloadUnreadable, match=f"error of task 'bad' .*: {lacking}"):
            await blind.result(SESSION, "bad")
        with pytest.raises(PayloadUnreadable) as refused:
            await blind.snapshot(SESSION, "secret", 1)
        assert refused.value.field == "result of step:echo#1"
        gathered = await client.batch(
            "echo", "a", session_id=SESSION, after=timedelta(milliseconds=1)
        )
        with pytest.raises(PayloadUnreadable, match=f"input of task '{gathered}'"):
            await blind.rerun(SESSION, gathered)
