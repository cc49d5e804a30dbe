"""A loop that is kept awake for the reply to a lone call: for that, and for no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.errors import ConfigError
from redis_state.settings import Settings
from redis_state.testing import eventually
from redis_state.transport.sending.calls import CallSender
from tests.support.servers.faults import Proxy, sender_to


def waits_of_this_loop(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bool]]:
    """Note when the running loop asks for events, and whether it is ready to sleep until then."""
    selector: Any = attrgetter("_selector")(asyncio.get_running_loop())
    select: Callable[[float | None], Any] = selector.select
    recorded: list[tuple[float, bool]] = []

    def noting(timeout: float | None = None) -> Any:
        recorded.append((time.monotonic(), timeout is None or timeout > 0))
        return select(timeout)

    monkeypatch.setattr(selector, "select", noting)
    return recorded


def sleeps(waits: list[tuple[float, bool]]) -> list[float]:
    return [at for at, sleeping in waits if sleeping]


async def ping(sender: CallSender) -> None:
    await sender.send("PING", repeatable=True)


async def test_loop_is_awake_for_as_long_as_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url, busy_poll_s=0.5) as sender:
        await ping(sender)
        proxy.silence()
        waits = waits_of_this_loop(monkeypatch)
        began = time.monotonic()
        call = sender.send("PING", repeatable=True)
        await eventually(lambda: sleeps(waits), "the loop sleeps again")
        assert not call.done()
        assert sleeps(waits)[0] >= began + 0.5
        assert len(waits) > 10


async def test_loop_sleeps_once_the_reply_is_there(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sender_to(url, busy_poll_s=60) as sender:
        await ping(sender)
        waits = waits_of_this_loop(monkeypatch)
        await asyncio.gather(*(ping(sender) for _ in range(100)))
        assert waits
        assert not sleeps(waits)
        await eventually(lambda: sleeps(waits), "the loop sleeps again")


async def test_loop_sleeps_by_default(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await ping(sender)
        proxy.silence()
        waits = waits_of_this_loop(monkeypatch)
        sender.send("PING", repeatable=True)
        await eventually(lambda: sleeps(waits), "the loop sleeps")
        # A loop that is kept awake turns hundreds of times first.
        assert [sleeping for _, sleeping in waits].index(True) < 10


async def test_a_store_counts_in_microseconds(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(url) as proxy:
        options = {"namespace": settings.namespace, "busy_poll_us": 10_000}
        async with RedisStateStore.from_url(proxy.url, **options) as store:
            await ping(store.transport.sender)
            proxy.silence()
            waits = waits_of_this_loop(monkeypatch)
            began = time.monotonic()
            call = store.transport.sender.send("PING", repeatable=True)
            await eventually(lambda: sleeps(waits), "the loop sleeps again")
            assert sleeps(waits)[0] >= began + 0.01
            proxy.cut()
            proxy.silence(silent=False)
            assert await call == b"PONG"


@pytest.mark.parametrize("given", [-1, 10_001, "long"])
def test_a_time_that_is_none_is_refused_by_its_name(given: object) -> None:
    with pytest.raises(ConfigError, match="busy_poll_us"):
        RedisStateStore.from_url("redis://localhost", busy_poll_us=given)


async def test_loop_does_other_work_meanwhile(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url, busy_poll_s=60) as sender:
        await ping(sender)
        proxy.silence()
        call = sender.send("PING", repeatable=True)
        assert await asyncio.to_thread(lambda: "done") == "done"
        async with asyncio.timeout(60):
            await asyncio.sleep(0.01)
        assert not call.done()
