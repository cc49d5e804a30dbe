"""Saves without a version on links that die without a word, and on a server that is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.embedded.server import start_embedded
from redis_state.primitives.record import new_write_id
from redis_state.scripts import Reply
from redis_state.testing import eventually
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask
from tests.support.scripts.tasks import task_values
from tests.support.servers.faults import Proxy, own_binary, reached

Save = Callable[[RedisStateStore, str], Awaitable[Reply]]


def put_record(store: RedisStateStore, value: str) -> Awaitable[Reply]:
    """Save a record, at whatever version it is."""
    return store.base.scripts.put_record(
        task_keys(store.base.keys).task,
        {"status": value.encode()},
        write=new_write_id(),
        ttl_ms=HOUR,
    )


def save_task(store: RedisStateStore, value: str) -> Awaitable[Reply]:
    """Save a host's task."""
    return store.base.scripts.save_task(
        task_keys(store.base.keys),
        task_values(value),
        write=new_write_id(),
        ttl_ms=HOUR,
        finished=False,
        updated_at_us=1,
    )


async def stored(store: RedisStateStore) -> tuple[bytes, int]:
    """Return what was saved last, and at which version."""
    key = task_keys(store.base.keys).task
    value, version = await ask(store.base.scripts, "HMGET", key, "status", "version")
    return value, int(version or 0)


@pytest.mark.parametrize("save", [put_record, save_task])
async def test_a_save_whose_reply_is_swallowed_leaves_what_others_saved_since(
    settings: Settings, store: RedisStateStore, save: Save
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        changed: dict[str, Any] = {"url": SecretStr(proxy.url), "call_timeout_s": 6.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as far:
            await reached(far)
            proxy.silence()
            mine = asyncio.ensure_future(save(far, "mine"))
            await eventually(lambda: _is(store, (b"mine", 1)), "it is saved")
            await save(store, "theirs")
            proxy.silence(silent=False)
            await mine
            assert proxy.accepted > 1
    assert await stored(store) == (b"theirs", 2)


@pytest.mark.parametrize("save", [put_record, save_task])
async def test_a_save_that_never_arrived_is_made_once_on_the_next_link(
    settings: Settings, store: RedisStateStore, save: Save
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        changed: dict[str, Any] = {"url": SecretStr(proxy.url), "call_timeout_s": 6.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as far:
            await reached(far)
            assert proxy.half_open() >= 1
            await save(far, "mine")
            assert proxy.swallowed
    assert await stored(store) == (b"mine", 1)


@pytest.mark.parametrize("save", [put_record, save_task])
async def test_saves_to_a_stopped_server_count_once_each(save: Save) -> None:
    with start_embedded(None, binary=own_binary()) as server:
        async with Proxy(server.url) as proxy:
            settings = Settings(url=SecretStr(proxy.url), call_timeout_s=9.0)
            async with RedisStateStore(settings) as one, RedisStateStore(settings) as other:
                for store in (one, other):
                    await reached(store)
                before = proxy.accepted
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    saves = [
                        asyncio.ensure_future(save(store, f"{name}{number}"))
                        for number in range(3)
                        for name, store in (("a", one), ("b", other))
                    ]
                    # What was sent is given up, and is sent again on another link.
                    await eventually(lambda: proxy.accepted > before + 1, "both are given up")
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                await asyncio.gather(*saves)
                value, version = await stored(one)
                assert (value in {b"a2", b"b2"}, version) == (True, 6)


async def _is(store: RedisStateStore, wanted: tuple[bytes, int]) -> bool:
    return await stored(store) == wanted
