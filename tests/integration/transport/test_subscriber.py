"""The subscription connection: order, sharing, repair, refusals, its end."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from redis_state.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
)
from redis_state.settings import Settings
from redis_state.testing import eventually
from redis_state.transport import subscriber as module
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.protocol import RespProtocol
from redis_state.transport.sending.sender import Sender
from redis_state.transport.subscriber import Subscriber, Subscription
from tests.support.servers.faults import FailingLocator, Proxy, sender_to

SOON_S = 60.0


@pytest.fixture
def channel(settings: Settings) -> str:
    return f"{settings.namespace}:channel"


@pytest.fixture
async def sender(url: str) -> AsyncIterator[Sender]:
    async with sender_to(url) as opened:
        yield opened


@asynccontextmanager
async def subscriber_to(
    url: str, problem: Callable[[], Exception | None] = lambda: None
) -> AsyncGenerator[Subscriber]:
    locator = FailingLocator(url, problem)
    subscriber = Subscriber(locator, shown_as=str(Address.parse(url)))
    try:
        yield subscriber
    finally:
        await subscriber.aclose()


async def heard(subscription: Subscription) -> bytes | None:
    return await asyncio.wait_for(subscription.next(), SOON_S)


async def test_confirmation_comes_first_then_messages_in_order(
    url: str, channel: str, sender: Sender
) -> None:
    async with subscriber_to(url) as subscriber:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None
        for number in range(300):
            sender.send("SPUBLISH", channel, number, repeatable=False)
        assert [await heard(subscription) for _ in range(300)] == [
            str(number).encode() for number in range(300)
        ]


async def test_followers_share_one_connection_and_one_subscription(
    url: str, channel: str, sender: Sender
) -> None:
    async with subscriber_to(url) as subscriber:
        first, other = subscriber.subscribe(channel), subscriber.subscribe(f"{channel}:other")
        assert await heard(first) is await heard(other) is None
        second = subscriber.subscribe(channel)
        assert await heard(second) is None
        assert await sender.send("SPUBLISH", channel, "both", repeatable=False) == 1
        assert await heard(first) == await heard(second) == b"both"
        subscriber.unsubscribe(first)
        assert await sender.send("SPUBLISH", channel, "second", repeatable=False) == 1
        assert await heard(second) == b"second"
        subscriber.unsubscribe(second)
        subscriber.unsubscribe(second)

        async def left() -> bool:
            reported: int = await sender.send("SPUBLISH", channel, "nobody", repeatable=False)
            return reported == 0

        await eventually(left, "the channel was left")
        await sender.send("SPUBLISH", f"{channel}:other", "other", repeatable=False)
        assert await heard(other) == b"other"
        assert subscriber.connections == 1


async def test_what_is_asked_in_one_turn_leaves_in_one_write(
    url: str, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = RespProtocol.write

    def counted(self: RespProtocol, data: bytes) -> None:
        written.append(data)
        write(self, data)

    async with subscriber_to(url) as subscriber:
        first = subscriber.subscribe(channel)
        assert await heard(first) is None
        monkeypatch.setattr(RespProtocol, "write", counted)
        many = [subscriber.subscribe(f"{channel}-{number}") for number in range(20)]
        subscriber.unsubscribe(first)
        for subscription in many:
            assert await heard(subscription) is None
        # A connection that is silent for long is sent a PING of its own.
        [sent] = [data for data in written if b"SUBSCRIBE" in data]
        assert sent.count(b"SSUBSCRIBE") == len(many)
        assert sent.count(b"SUNSUBSCRIBE") == 1


async def test_channel_that_is_left_and_followed_again_misses_nothing_after_the_last_none(
    url: str, channel: str, sender: Sender
) -> None:
    async with subscriber_to(url) as subscriber:
        for turn in range(20):
            subscription = subscriber.subscribe(channel)
            if turn % 2:
                assert await heard(subscription) is None
            subscriber.unsubscribe(subscription)
        subscription = subscriber.subscribe(channel)

        async def listed() -> bool:
            reported: int = await sender.send("SPUBLISH", channel, "again", repeatable=False)
            return reported == 1

        await eventually(listed, "the channel is followed again")
        while await heard(subscription) != b"again":
            pass


async def test_connection_that_was_cut_comes_back_with_none(
    url: str, channel: str, sender: Sender
) -> None:
    async with Proxy(url) as proxy, subscriber_to(proxy.url) as subscriber:
        subscriptions = [subscriber.subscribe(f"{channel}:{number}") for number in range(3)]
        for subscription in subscriptions:
            assert await heard(subscription) is None
        proxy.refuse()
        assert proxy.cut()
        await eventually(lambda: proxy.refused > 1, "the server refused to connect")
        late = subscriber.subscribe(f"{channel}:0")
        proxy.refuse(refusing=False)
        for subscription in (*subscriptions, late):
            assert await heard(subscription) is None
        await sender.send("SPUBLISH", f"{channel}:0", "back", repeatable=False)
        assert await heard(subscriptions[0]) == await heard(late) == b"back"
        assert subscriber.connections == 2


async def test_dead_connection_is_noticed_and_made_anew(
    url: str, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.1)
    async with Proxy(url) as proxy, subscriber_to(proxy.url) as subscriber:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None
        proxy.silence()
        await eventually(lambda: proxy.swallowed > 0, "the connection is silent")
        proxy.silence(silent=False)
        assert await heard(subscription) is None
        assert subscriber.connections == 2


@pytest.mark.role("any", why="it lists connections")
async def test_idle_connection_is_kept(
    url: str, channel: str, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.05)
    async with subscriber_to(url) as subscriber:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None

        async def pinged() -> bool:
            listed = await sender.send("CLIENT", "LIST", "TYPE", "pubsub", repeatable=True)
            return b"cmd=ping" in listed

        await eventually(pinged, "the subscriber has sent a ping")
        await sender.send("SPUBLISH", channel, "kept", repeatable=False)
        assert await heard(subscription) == b"kept"
        assert subscriber.connections == 1


async def test_connection_that_may_not_be_pinged_is_kept(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.05)
    async with sender_to(own_url) as admin:
        rules = ("on", ">pw", "allchannels", "+ssubscribe", "+client")
        await admin.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
        narrow = own_url.replace("unix://", "unix://narrow:pw@")
        async with subscriber_to(narrow) as subscriber:
            subscription = subscriber.subscribe("channel")
            assert await heard(subscription) is None

            async def refused() -> bool:
                counts = await admin.send("INFO", "commandstats", repeatable=True)
                found = re.search(rb"cmdstat_ping:.*rejected_calls=(\d+)", counts)
                # The first is the one with which the connection was opened.
                return found is not None and int(found[1]) > 1

            await eventually(refused, "a ping was refused")
            await admin.send("SPUBLISH", "channel", "kept", repeatable=False)
            assert await heard(subscription) == b"kept"
            assert subscriber.connections == 1


async def test_channel_that_is_left_before_its_confirmation_is_heard_by_nobody(
    url: str, channel: str, sender: Sender
) -> None:
    async with subscriber_to(url) as subscriber:
        assert await heard(subscriber.subscribe(f"{channel}:other")) is None
        brief = subscriber.subscribe(channel)
        subscriber.unsubscribe(brief)
        last = subscriber.subscribe(f"{channel}:last")
        assert await heard(last) is None
        assert await sender.send("SPUBLISH", channel, "nobody", repeatable=False) == 0
        assert not brief._messages


async def test_follower_that_is_too_slow_gets_none_in_place_of_all(
    url: str, channel: str, sender: Sender
) -> None:
    async with subscriber_to(url) as subscriber:
        slow, quick = subscriber.subscribe(channel), subscriber.subscribe(channel)
        assert await heard(slow) is await heard(quick) is None
        for number in range(1001):
            sender.send("SPUBLISH", channel, number, repeatable=False)
            assert await heard(quick) == str(number).encode()
        # Who waits for a message goes on before others have got it.
        await asyncio.sleep(0)
        assert await heard(slow) is None
        await sender.send("SPUBLISH", channel, "next", repeatable=False)
        assert await heard(slow) == b"next"


async def test_follower_that_is_too_slow_for_large_messages_holds_few_of_them(
    url: str, channel: str, sender: Sender
) -> None:
    large = bytes(1 << 20)
    async with subscriber_to(url) as subscriber:
        slow, quick = subscriber.subscribe(channel), subscriber.subscribe(channel)
        assert await heard(slow) is await heard(quick) is None
        for _ in range(9):
            sender.send("SPUBLISH", channel, large, repeatable=False)
            assert await heard(quick) == large
        await asyncio.sleep(0)
        assert await heard(slow) is None
        await sender.send("SPUBLISH", channel, "next", repeatable=False)
        assert await heard(slow) == b"next"


async def test_refused_channel_is_an_error_for_its_followers_only(own_url: str) -> None:
    async with sender_to(own_url) as admin:
        rules = ("on", ">pw", "resetchannels", "&mine:*", "+@all")
        await admin.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
        narrow = own_url.replace("unix://", "unix://narrow:pw@")
        async with subscriber_to(narrow) as subscriber:
            mine = subscriber.subscribe("mine:1")
            refused = subscriber.subscribe("other")
            also = subscriber.subscribe("mine:2")
            with pytest.raises(CommandRefused, match="not permitted"):
                await heard(refused)
            # Whoever follows it later is refused too, and once it is permitted is not.
            with pytest.raises(CommandRefused, match="not permitted"):
                await heard(subscriber.subscribe("other"))
            await admin.send("ACL", "SETUSER", "narrow", "&other", repeatable=True)
            assert await heard(subscriber.subscribe("other")) is None
            assert await heard(mine) is await heard(also) is None
            await admin.send("SPUBLISH", "mine:2", "on", repeatable=False)
            assert await heard(also) == b"on"
            assert subscriber.connections == 1


async def test_wrong_password_is_an_error_until_it_is_put_right(own_url: str) -> None:
    async with sender_to(own_url) as admin, subscriber_to(own_url) as subscriber:
        await admin.send("CONFIG", "SET", "requirepass", "right", repeatable=True)
        subscription = subscriber.subscribe("channel")
        for _ in range(2):
            with pytest.raises(AuthenticationFailed, match="Authentication required"):
                await heard(subscription)
        await admin.send("CONFIG", "SET", "requirepass", "", repeatable=True)

        async def confirmed() -> bool:
            try:
                return await heard(subscription) is None
            except AuthenticationFailed:
                return False

        await eventually(confirmed, "the subscription is confirmed")


async def test_server_that_cannot_be_started_is_an_error_and_an_unexpected_one_is_logged(
    url: str, channel: str, caplog: pytest.LogCaptureFixture
) -> None:
    problems = [RuntimeError("a bug"), ConfigError("nothing to start")]
    async with subscriber_to(url, lambda: problems.pop() if problems else None) as subscriber:
        subscription = subscriber.subscribe(channel)
        with pytest.raises(ConfigError, match="nothing to start"):
            await heard(subscription)
        assert await heard(subscription) is None
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "a bug" in (record.exc_text or "")


async def test_close_ends_every_wait_and_refuses_new_followers(url: str, channel: str) -> None:
    async with subscriber_to(url) as subscriber:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None
        waiting = asyncio.create_task(heard(subscription))
        await asyncio.sleep(0)
        await subscriber.aclose()
        with pytest.raises(BackendUnavailable, match="the store is closed"):
            await waiting
        with pytest.raises(BackendUnavailable, match="the store is closed"):
            subscriber.subscribe(channel)
        await subscriber.aclose()
        subscriber.unsubscribe(subscription)


async def test_close_before_any_use_connects_nowhere(url: str) -> None:
    async with subscriber_to(url) as subscriber:
        await subscriber.aclose()
        assert subscriber.connections == 0
