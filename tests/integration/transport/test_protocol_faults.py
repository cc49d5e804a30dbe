"""A server that sends what nobody asked for: no caller gets it, and calls go on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redis_state.errors import OutcomeUnknown
from redis_state.settings import Settings
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from redis_state.transport.wire.resp import prepare
from redis_state.transport.wire.script import Script
from tests.integration.transport.sending.test_shared_commands import each_of
from tests.integration.transport.test_subscriber import heard, subscriber_to
from tests.support.servers.faults import Proxy, sender_to

EXTRA = b"$8\r\nsomebody\r\n"


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


def once(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Change the first read for which the change makes a difference."""
    changes = [change]

    def apply(data: bytes) -> bytes:
        if not changes or (changed := changes[0](data)) == data:
            return data
        changes.pop()
        return changed

    return apply


async def echoed(sender: Sender, *texts: str) -> list[bytes]:
    calls = [sender.send("ECHO", text, repeatable=True) for text in texts]
    return [await call for call in calls]


@pytest.mark.role("any", why="it sends ECHO")
async def test_a_reply_to_no_call_ends_the_connection_and_reaches_nobody(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with sender_to(proxy.url) as sender:
        assert await echoed(sender, "before") == [b"before"]
        assert proxy.inject(EXTRA) == 1
        await eventually(lambda: sender._connection.protocol is None, "the connection is given up")
        assert await echoed(sender, "a", "b", "c") == [b"a", b"b", b"c"]
        assert sender.connections == 2
    # It is the server's fault, and no error of ours.
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "somebody" not in caplog.text


@pytest.mark.parametrize("before", [True, False], ids=["before it", "behind it"])
@pytest.mark.role("any", why="it sends ECHO")
async def test_an_extra_reply_beside_a_true_one_reaches_neither_its_caller_nor_the_next(
    proxy: Proxy, *, before: bool
) -> None:
    def add(data: bytes) -> bytes:
        if b"first" not in data:
            return data
        return EXTRA + data if before else data + EXTRA

    async with sender_to(proxy.url) as sender:
        await echoed(sender, "before")
        proxy.change(once(add))
        found: list[bytes] = []

        async def one_after_the_other() -> None:
            # The second call leaves in the moment in which the first has its reply.
            found.extend(await echoed(sender, "first"))
            found.extend(await echoed(sender, "second"))

        await asyncio.create_task(one_after_the_other())
        assert proxy.changed == 1
        assert found == [b"first", b"second"]
        assert sender.connections == 2


@pytest.mark.role("any", why="it sends ECHO")
async def test_what_may_not_be_repeated_is_outcome_unknown_beside_an_extra_reply(
    proxy: Proxy,
) -> None:
    async with sender_to(proxy.url) as sender:
        await echoed(sender, "before")
        proxy.change(once(lambda data: data + EXTRA if b"once" in data else data))
        call = sender.send("ECHO", "once", repeatable=False)
        with pytest.raises(OutcomeUnknown, match="protocol"):
            await call
        assert await echoed(sender, "after") == [b"after"]


def shorter(data: bytes) -> bytes:
    """Cut the array of a shared command's replies short by its last."""
    whole = b"*4\r\n" + b"".join(b"*1\r\n$1\r\n%d\r\n" % n for n in range(1, 5))
    return data.replace(whole, whole.replace(b"*4", b"*3").replace(b"*1\r\n$1\r\n4\r\n", b""))


def no_list(data: bytes) -> bytes:
    return data.replace(b"*4\r\n", b":4\r\n")


@pytest.mark.parametrize("change", [shorter, no_list])
async def test_a_shared_command_with_another_number_of_replies_gives_nobody_any(
    own_url: str, change: Callable[[bytes], bytes]
) -> None:
    script = each_of("redis.call('RPUSH', KEYS[1], ARGV[1]) return { ARGV[1] }")

    def push(sender: Sender, script: Script, number: int) -> asyncio.Future[Any]:
        return sender.run(prepare(script, ("list", "count")), (number,))

    async with Proxy(own_url) as proxy, sender_to(proxy.url) as sender:
        await push(sender, script, 0)
        await eventually(lambda: sender._sharing, "calls share commands")
        proxy.change(once(change))
        calls = [push(sender, script, n) for n in range(5)]
        # The first leaves alone.
        assert await asyncio.gather(*calls) == [[b"%d" % n] for n in range(5)]
        assert proxy.changed == 1
        assert sender.connections == 2


@pytest.mark.role("any", why="it sends ECHO")
async def test_bytes_that_are_no_reply_end_the_connection_and_calls_go_on(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with sender_to(proxy.url) as sender:
        await echoed(sender, "before")
        proxy.change(once(lambda data: b"\x15\x03\x01\r\n" if b"lost" in data else data))
        assert await echoed(sender, "lost") == [b"lost"]
        assert proxy.changed == 1
        assert sender.connections == 2
    assert "broke the protocol" in caplog.text
    assert "lost" not in caplog.text


@pytest.mark.role("any", why="it sends ECHO")
async def test_a_server_that_always_breaks_the_protocol_is_asked_ever_more_slowly(
    proxy: Proxy,
) -> None:
    async with sender_to(proxy.url) as sender:
        await echoed(sender, "before")
        proxy.change(lambda data: data + EXTRA if b"never" in data else data)
        with pytest.raises(OutcomeUnknown):
            await sender.send("ECHO", "never", repeatable=True, timeout_s=1)
        assert proxy.changed > 2
        assert sender.connections < 20
        proxy.change(None)
        # The last reply may be on its way, or read soon: a call behind it would be answered by it.
        used = sender._connection.protocol
        proxy.cut()
        if used is not None:
            await eventually(lambda: sender._connection.protocol is not used, "the cut is noticed")
        assert await echoed(sender, "after") == [b"after"]


@pytest.mark.parametrize(
    "extra",
    [EXTRA, b"*3\r\n$9\r\nsubscribe\r\n$9\r\nelsewhere\r\n:1\r\n", b"-ERR nobody asked\r\n"],
    ids=["a text", "a confirmation", "an error"],
)
async def test_a_subscription_begins_anew_after_a_reply_that_nobody_asked_for(
    proxy: Proxy, settings: Settings, extra: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    channel = f"{settings.namespace}:channel"
    url = settings.url.get_secret_value()
    async with subscriber_to(proxy.url) as subscriber, sender_to(url) as sender:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None
        assert proxy.inject(extra) == 1
        # None: messages may be missing.
        assert await heard(subscription) is None
        await sender.send("SPUBLISH", channel, "next", repeatable=True)
        assert await heard(subscription) == b"next"
        assert subscriber.connections == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
