"""Faults of the tests at single commands: what they hit, and what stands beside it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from redis_state import OutcomeUnknown, Settings
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from tests.support.samples import changed, update
from tests.support.servers.faults import sender_to
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

pytestmark = pytest.mark.role("any", why="it sends SET")
KEYS = ("one", "two", "three")


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def sender(proxy: CommandProxy) -> AsyncIterator[Sender]:
    async with sender_to(proxy.url) as opened:
        # Connected: what is sent together then is one write.
        await opened.send("PING", repeatable=True)
        yield opened


async def sent_together(sender: Sender, settings: Settings) -> list[str]:
    """Set three keys in one write; return how each call ended."""
    calls = [
        sender.send("SET", f"{settings.namespace}:{key}", key, "PX", 60_000, repeatable=False)
        for key in KEYS
    ]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    return [type(end).__name__ if isinstance(end, Exception) else str(end) for end in ended]


async def found(sender: Sender, settings: Settings) -> list[bytes | None]:
    calls = (sender.send("GET", f"{settings.namespace}:{key}", repeatable=True) for key in KEYS)
    return list(await asyncio.gather(*calls))


@pytest.mark.parametrize("after", [False, True])
async def test_a_cut_is_before_the_command_or_behind_it(
    proxy: CommandProxy, sender: Sender, settings: Settings, *, after: bool
) -> None:
    fault = proxy.cut_after if after else proxy.cut_before
    with fault("SET", holding="two"):
        ended = await sent_together(sender, settings)
    assert ended == ["b'OK'", "OutcomeUnknown", "OutcomeUnknown"]
    assert await found(sender, settings) == [b"one", b"two" if after else None, None]
    assert (proxy.cuts, proxy.accepted) == (1, 2)


async def test_an_error_is_the_answer_to_its_command_alone(
    proxy: CommandProxy, sender: Sender, settings: Settings
) -> None:
    with proxy.answer("SET", OOM, at=2):
        assert await sent_together(sender, settings) == ["b'OK'", "StoreFull", "b'OK'"]
    assert await found(sender, settings) == [b"one", None, b"three"]
    assert (proxy.cuts, proxy.accepted) == (0, 1)


async def test_something_else_comes_between_two_commands(
    proxy: CommandProxy, sender: Sender, settings: Settings
) -> None:
    seen: list[list[bytes | None]] = []
    async with sender_to(settings.url.get_secret_value()) as beside:

        async def look() -> None:
            seen.append(await found(beside, settings))

        with proxy.meanwhile("SET", look, at=2, times=2) as fault:
            assert await sent_together(sender, settings) == ["b'OK'"] * 3
    assert (fault.fired, fault.seen) == (2, 3)
    assert seen[-1] == [b"one", b"two", None]


async def test_a_script_is_known_by_its_text_and_by_its_digest(
    proxy: CommandProxy, settings: Settings
) -> None:
    async with changed(settings, url=proxy.url) as store:
        for text in ("by its text", "by its digest"):
            # Its call is repeated, and finds its write if there was one.
            with proxy.cut_before("put_record"), proxy.cut_after("put_record", at=2) as fault:
                await store.save_memory_state("m", {"is": text})
            assert fault.seen == 3
            assert await store.load_memory("m") == ({"is": text}, 1 + ("digest" in text))


async def test_a_fault_that_is_not_met_fails_its_test(
    proxy: CommandProxy, sender: Sender, settings: Settings
) -> None:
    with (
        pytest.raises(AssertionError, match=re.escape("met 0 times of 1, and seen 3 times")),
        proxy.cut_before("SET", at=4),
    ):
        await sent_together(sender, settings)


async def test_what_fails_between_two_commands_fails_its_test(
    proxy: CommandProxy, sender: Sender, settings: Settings
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), proxy.meanwhile("SET", fail):
        assert await sent_together(sender, settings) == [OutcomeUnknown.__name__] * 3


async def test_a_subscription_goes_through(proxy: CommandProxy, settings: Settings) -> None:
    async with (
        changed(settings, url=proxy.url) as store,
        aclosing(store.watch_updates("session")) as updates,
    ):
        first = asyncio.create_task(anext(updates))
        await eventually(lambda: proxy.accepted == 2, "it listens")
        with proxy.cut_after("append_log"):
            await store.save_update(update("u"))
        async with asyncio.timeout(20):
            assert (await first).value.update_id == "u"
