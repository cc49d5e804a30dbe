"""The sender when replies are lost or late: what is repeated, and what ends at its deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from redis_state.embedded.server import start_embedded
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    OutcomeUnknown,
)
from redis_state.testing import eventually
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.protocol import open_protocol
from tests.support.servers.calls import has, outcome_of
from tests.support.servers.faults import (
    Proxy,
    needs_one_server,
    own_binary,
    sender_to,
)
from tests.support.timing import Overdue

# How far behind a deadline the timer is set that nothing may wait for.
LATE_S = 0.5


async def test_repeatable_calls_are_repeated_in_order_when_the_connection_breaks(
    url: str, key: str
) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.deafen()
        calls = [sender.send("RPUSH", key, number, repeatable=True) for number in range(500)]
        await eventually(lambda: proxy.swallowed > 0, "the calls are in flight")
        calls += [sender.send("RPUSH", key, number, repeatable=True) for number in range(500, 600)]
        proxy.deafen(deaf=False)
        assert proxy.cut()
        assert await asyncio.gather(*calls) == list(range(1, 601))
        sender.send("PEXPIRE", key, 60000, repeatable=True)
        stored = await sender.send("LRANGE", key, 0, -1, repeatable=True)
        assert [int(row) for row in stored] == list(range(600))
        assert sender.connections == 2


async def test_call_that_may_not_be_repeated_is_outcome_unknown_and_done_once(
    url: str, key: str
) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender, sender_to(url) as check:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        once = sender.send("RPUSH", key, "x", repeatable=False)
        twice = sender.send("PEXPIRE", key, 60000, repeatable=True)
        await eventually(lambda: has(check, key, 1), "the server has executed the call")
        proxy.silence(silent=False)
        assert proxy.cut()
        with pytest.raises(OutcomeUnknown, match="sent, then"):
            await once
        assert await twice == 1
        assert await sender.send("LLEN", key, repeatable=True) == 1


@pytest.mark.role("any", why="it sends ECHO")
async def test_cuts_at_any_moment_lose_no_repeatable_call_and_mix_up_no_reply(
    url: str, key: str
) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:

        async def call(number: int) -> bytes:
            await asyncio.sleep(number % 100 / 100)
            reply: bytes = await sender.send("ECHO", f"{number}", repeatable=True)
            return reply

        # A busy machine makes fewer cuts in a round.
        while proxy.cuts <= 10:
            calls = [asyncio.create_task(call(number)) for number in range(3000)]
            pending = set(calls)
            while pending:
                proxy.cut()
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert [int(await task) for task in calls] == list(range(3000))
        assert sender.connections > 10


async def test_calls_queue_in_order_while_the_server_refuses(url: str, key: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.refuse()
        proxy.cut()
        sender.send("PING", repeatable=True)
        await eventually(lambda: proxy.refused > 1, "the server refused to connect")
        calls = [sender.send("RPUSH", key, number, repeatable=False) for number in range(100)]
        cancelled = sender.send("RPUSH", key, "cancelled", repeatable=False)
        cancelled.cancel()
        calls.append(sender.send("PEXPIRE", key, 60000, repeatable=False))
        proxy.refuse(refusing=False)
        assert await asyncio.gather(*calls) == [*range(1, 101), 1]
        stored = await sender.send("LRANGE", key, 0, -1, repeatable=True)
        assert [int(row) for row in stored] == list(range(100))


@pytest.mark.role("any", why="it kills connections")
async def test_killed_client_connects_again(url: str) -> None:
    async with sender_to(url) as sender, sender_to(url) as killer:
        client = await sender.send("CLIENT", "ID", repeatable=True)
        assert await killer.send("CLIENT", "KILL", "ID", client, repeatable=True) == 1
        assert await sender.send("ECHO", "x", repeatable=True) == b"x"
        assert await sender.send("CLIENT", "ID", repeatable=True) != client


async def test_nobody_listening_is_unavailable_at_the_deadline() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}"
        async with sender_to(url) as sender:
            began = time.monotonic()
            call = sender.send("PING", repeatable=True, timeout_s=0.3)
            late = Overdue(call, 0.3 + LATE_S)
            error, at = await outcome_of(call)
    assert type(error) is BackendUnavailable
    assert str(error).startswith(f"{url}/0: ")
    assert at - began >= 0.3
    assert not late.seen


async def test_missing_socket_is_unavailable_at_the_deadline(tmp_path: Path) -> None:
    async with sender_to(f"unix://{tmp_path}/none") as sender:
        began = time.monotonic()
        call = sender.send("PING", repeatable=True, timeout_s=0.3)
        late = Overdue(call, 0.3 + LATE_S)
        error, at = await outcome_of(call)
    assert type(error) is BackendUnavailable
    assert at - began >= 0.3
    assert not late.seen


@pytest.mark.parametrize("connect_timeout_s", [0.1, 5.0])
async def test_handshake_without_an_answer_is_unavailable_at_the_earlier_deadline(
    url: str, connect_timeout_s: float
) -> None:
    async with (
        Proxy(url) as proxy,
        sender_to(proxy.url, connect_timeout_s=connect_timeout_s) as sender,
    ):
        proxy.deafen()
        began = time.monotonic()
        earlier_s = min(0.4, connect_timeout_s)
        call = sender.send("PING", repeatable=True, timeout_s=0.4)
        late = Overdue(call, earlier_s + LATE_S)
        error, at = await outcome_of(call)
        assert type(error) is BackendUnavailable
        assert "deadline" in str(error)
        assert at - began >= earlier_s
        assert not late.seen
        assert proxy.swallowed


async def test_each_call_in_flight_has_its_own_deadline(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        timeouts = (0.8, 0.2, 0.5, 0.2, 1.1)
        began = time.monotonic()
        calls = [
            (sender.send("PING", repeatable=False, timeout_s=timeout_s), timeout_s)
            for timeout_s in timeouts
        ]
        late = [Overdue(call, timeout_s + LATE_S) for call, timeout_s in calls]
        ended = await asyncio.gather(*(outcome_of(call) for call, _ in calls))
    assert proxy.swallowed
    assert not any(each.seen for each in late)
    for (error, at), (_, timeout_s) in zip(ended, calls, strict=True):
        assert type(error) is OutcomeUnknown
        # The oldest call, when overdue, ends the connection, and with it the calls behind it.
        assert at - began >= min(timeout_s, 0.8)


@pytest.mark.role("any", why="it sends ECHO")
async def test_overdue_reply_ends_the_connection_and_the_next_call_succeeds(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        error, _ = await outcome_of(sender.send("PING", repeatable=True, timeout_s=0.2))
        assert type(error) is OutcomeUnknown
        assert proxy.swallowed
        proxy.silence(silent=False)
        assert await sender.send("ECHO", "next", repeatable=True) == b"next"
        assert sender.connections == 2


@pytest.mark.role("any", why="it sends ECHO")
async def test_cancelled_call_without_an_answer_also_ends_the_connection(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        cancelled = sender.send("PING", repeatable=True, timeout_s=0.2)
        await eventually(lambda: proxy.swallowed > 0, "the call was answered in vain")
        cancelled.cancel()
        proxy.silence(silent=False)
        assert await sender.send("ECHO", "next", repeatable=True) == b"next"
        assert sender.connections == 2


@pytest.mark.role("any", why="it sends ECHO")
async def test_a_lasting_call_that_was_cancelled_is_repeated_when_its_reply_is_lost(
    url: str,
) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("DEL", "lasting", repeatable=True)
        proxy.silence()
        cancelled = sender.send("INCRBY", "lasting", 1, repeatable=True, lasting=True)
        await eventually(lambda: proxy.swallowed > 0, "the call was answered in vain")
        cancelled.cancel()
        proxy.silence(silent=False)
        assert proxy.cut() > 0
        assert await sender.send("GET", "lasting", repeatable=True) == b"2"
        await sender.send("DEL", "lasting", repeatable=True)
        assert sender.connections == 2
        assert sender.pending == 0


async def test_a_lasting_call_that_was_cancelled_ends_at_its_deadline() -> None:
    async with sender_to("redis://127.0.0.1:1") as sender:
        lasting = sender.send("PING", repeatable=True, lasting=True, timeout_s=0.05)
        lasting.cancel()
        assert sender.pending == 1
        await sender.drain(10)
        assert sender.pending == 0


@pytest.mark.role("any", why="it sends ECHO")
async def test_connection_on_which_replies_still_come_is_kept(url: str) -> None:
    # The proxy is silent too while this process gets no processor: then it is tried again.
    for _ in range(5):
        if await connections_behind_slow_replies(url) == 1:
            return
    pytest.fail("the connection was given up each time")


async def connections_behind_slow_replies(url: str) -> int:
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.dribble(120, 0.05)
        impatient = [
            sender.send("ECHO", b"x" * 100, repeatable=True, timeout_s=0.75) for _ in range(60)
        ]
        patient = sender.send("ECHO", "patient", repeatable=True)
        outcomes = await asyncio.gather(*impatient, return_exceptions=True)
        late = sum(isinstance(reply, OutcomeUnknown) for reply in outcomes)
        assert 0 < late < 60
        assert await patient == b"patient"
        return sender.connections


async def test_stopped_server_lets_no_call_hang_and_is_used_again_when_it_goes_on() -> None:
    with start_embedded(None, binary=own_binary()) as server:
        async with sender_to(server.url, call_timeout_s=0.5) as sender:
            await sender.send("PING", repeatable=True)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                for _ in range(2):
                    calls = [sender.send("PING", repeatable=True) for _ in range(10)]
                    # More than the socket takes: the write itself is stuck.
                    calls.append(sender.send("ECHO", bytes(4 << 20), repeatable=True))
                    late = [Overdue(call, 0.5 + LATE_S) for call in calls]
                    for error, _ in await asyncio.gather(*map(outcome_of, calls)):
                        assert isinstance(error, BackendUnavailable)
                    assert not any(each.seen for each in late)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert await sender.send("ECHO", "on", repeatable=True, timeout_s=5) == b"on"


async def test_many_calls_expire_while_the_loop_stays_free(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url, call_timeout_s=0.5) as sender:
        proxy.refuse()
        calls: list[asyncio.Future[Any]] = []
        began, costs = time.monotonic(), list[float]()
        while time.monotonic() - began < 1 or len(calls) < 5000:
            spent = time.thread_time()
            calls += [sender.send("PING", repeatable=True) for _ in range(50)]
            await asyncio.sleep(0.001)
            costs.append(time.thread_time() - spent)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(type(error) is BackendUnavailable for error in outcomes)
        # A turn costs the same with thousands of calls as with a few: none looks at them all.
        assert median(costs[-50:]) < 5 * median(costs[:20])


async def test_nothing_is_written_to_a_connection_that_has_ended(url: str) -> None:
    needs_one_server(url)
    heard: list[Any] = []
    link = await open_protocol(Address.parse(url), heard.extend, timeout_s=5)
    link.write(b"*1\r\n$4\r\nPING\r\n")
    await eventually(lambda: heard == [b"PONG"], "it is heard")
    link.abort("enough")
    link.write(b"*1\r\n$4\r\nPING\r\n")
    assert await link.lost() == "enough"
    assert heard == [b"PONG"]


async def test_server_that_hangs_up_after_the_handshake_is_not_waited_for(
    unused_tcp_port: int,
) -> None:
    left = 0

    async def greet_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        stated = b" "
        while stated and b"PING" not in stated:
            stated = await reader.read(1 << 16)
            writer.write(b"+OK\r\n" * stated.count(b"*"))
        left += 1
        writer.close()

    server = await asyncio.start_server(greet_and_leave, "127.0.0.1", unused_tcp_port)
    async with server, sender_to(f"redis://127.0.0.1:{unused_tcp_port}/0") as sender:
        for _ in range(5):
            error, _ = await outcome_of(sender.send("PING", repeatable=True, timeout_s=0.3))
            assert isinstance(error, BackendError)
        # It was not the first connection that was waited for.
        assert left > 3
