"""The sender on a healthy server: order, batches, cancelled calls, refusals, deadlines, its end."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    CallerError,
    CommandRefused,
    OutcomeUnknown,
    RedisStateError,
    StoreFull,
)
from redis_state.scripts.loader import Library
from redis_state.settings import Settings
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from redis_state.transport.wire.resp import prepare
from redis_state.transport.wire.script import Script
from tests.support.servers.faults import Proxy, run_server, sender_to, short_directory


@pytest.fixture
async def sender(settings: Settings) -> AsyncIterator[Sender]:
    async with sender_to(settings.url.get_secret_value()) as opened:
        yield opened


def script_of(text: str) -> Script:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.lua").write_text(text)
        return Library(Path(folder)).load("script")


PUSH = "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('PEXPIRE', KEYS[1], 60000)"


def run_script(sender: Sender, script: Script, key: str, *arguments: Any) -> asyncio.Future[Any]:
    return sender.run(prepare(script, (key,)), arguments, repeatable=False)


async def test_calls_take_effect_in_call_order_though_nobody_awaits_them(
    sender: Sender, key: str
) -> None:
    for number in range(1000):
        sender.send("RPUSH", key, number, repeatable=False)
        if number % 97 == 0:
            await asyncio.sleep(0)
    sender.send("PEXPIRE", key, 60000, repeatable=True)
    stored = await sender.send("LRANGE", key, 0, -1, repeatable=True)
    assert [int(row) for row in stored] == list(range(1000))


@pytest.mark.role("any", why="it sends ECHO")
async def test_calls_of_one_turn_leave_in_few_writes(sender: Sender) -> None:
    await sender.send("PING", repeatable=True)
    before = sender.batches
    # The first finds nothing on its way, and does not wait for the others; then there are 24 in
    # each, so that the server can begin; the rest goes at the end of the turn.
    await asyncio.gather(*(sender.send("PING", repeatable=True) for _ in range(1 + 24 + 24)))
    assert sender.batches - before == 3
    await asyncio.gather(*(sender.send("PING", repeatable=True) for _ in range(1 + 24 + 24 + 1)))
    assert sender.batches - before == 7
    large = bytes(1 << 18)
    await asyncio.gather(*(sender.send("ECHO", large, repeatable=True) for _ in range(3)))
    assert sender.batches - before == 10
    assert sender.connections == 1


async def test_a_call_that_nobody_waits_for_leaves_with_the_next_one_or_soon_by_itself(
    sender: Sender, key: str
) -> None:
    def put(number: int) -> asyncio.Future[Any]:
        return sender.unhurried(partial(sender.send, "RPUSH", key, number, repeatable=False))

    await sender.send("PING", repeatable=True)
    before = sender.batches
    lone = put(1)
    # The next turn of the loop is where what a reply has begun goes on.
    await asyncio.sleep(0)
    assert sender.batches == before
    assert await sender.send("RPUSH", key, 2, repeatable=False) == 2
    assert (sender.batches - before, await lone) == (1, 1)
    # In the same turn, and behind one that waits for a reply.
    calls = [put(3), sender.send("RPUSH", key, 4, repeatable=False), put(5)]
    assert await asyncio.gather(*calls) == [3, 4, 5]
    assert await put(6) == 6
    # Where what follows may not come for long.
    before = sender.batches
    hurried = put(7)
    for _ in range(2):
        sender.hurry()
        assert sender.batches == before + 1
    assert await hurried == 7
    # No call is lost with the sender's end.
    last = sender.unhurried(partial(sender.send, "DEL", key, repeatable=True))
    await sender.aclose()
    assert await last == 1


@pytest.mark.role("any", why="it sends ECHO")
async def test_every_kind_of_argument_arrives(sender: Sender) -> None:
    for argument in ("", "text ä\N{PILE OF POO}\r\n", b"\x00\xff\r\n$3", 0, -(1 << 63), "x" * 7000):
        expected = argument if isinstance(argument, bytes) else str(argument).encode()
        assert await sender.send("ECHO", argument, repeatable=True) == expected


@pytest.mark.role("any", why="it sends ECHO")
async def test_huge_command_goes_through_between_small_ones(sender: Sender) -> None:
    huge = random.randbytes(32 << 20)
    first = sender.send("ECHO", "first", repeatable=True)
    middle = sender.send("ECHO", huge, repeatable=True)
    last = sender.send("ECHO", "last", repeatable=True)
    assert await last == b"last"
    assert await middle == huge
    assert await first == b"first"


async def test_cancelled_call_that_was_not_sent_is_never_sent(sender: Sender, key: str) -> None:
    await sender.send("PING", repeatable=True)
    sender.send("PING", repeatable=True)
    cancelled = sender.send("SET", key, "wrong", "PX", 60000, repeatable=True)
    cancelled.cancel()
    assert await sender.send("EXISTS", key, repeatable=True) == 0
    assert sender.pending == 0


@pytest.mark.role("any", why="it sends INCRBY and EXPIRE")
async def test_a_lasting_call_is_sent_though_it_was_cancelled(sender: Sender, key: str) -> None:
    for _ in range(2):  # before there is a connection, and on it
        lasting = sender.send("INCRBY", key, 1, repeatable=False, lasting=True)
        lasting.cancel()
    assert await sender.send("EXPIRE", key, 60, repeatable=True) == 1
    assert await sender.send("GET", key, repeatable=True) == b"2"
    assert sender.pending == 0


@pytest.mark.role("any", why="it sends ECHO")
async def test_cancelled_calls_never_leave_their_reply_to_another(sender: Sender) -> None:
    rng = random.Random(7)
    wrong: list[tuple[bytes, bytes]] = []
    ended = {"answered": 0, "cancelled": 0}

    async def call(number: int) -> None:
        wanted = f"request {number}".encode()
        try:
            reply = await sender.send("ECHO", wanted, repeatable=True)
        except asyncio.CancelledError:
            ended["cancelled"] += 1
            raise
        ended["answered"] += 1
        if reply != wanted:
            wrong.append((wanted, reply))

    tasks: list[asyncio.Task[None]] = []
    for number in range(10_000):
        tasks.append(asyncio.create_task(call(number)))
        if rng.random() < 0.02:
            await asyncio.sleep(rng.choice((0, 0, 0.0005, 0.001)))
        if number % 2:
            rng.choice(tasks[-200:]).cancel()
    for task in rng.sample(tasks, 2000):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert wrong == []
    assert ended["cancelled"] > 500
    assert ended["answered"] > 500
    assert await sender.send("ECHO", "after", repeatable=True) == b"after"
    assert sender.connections == 1


@pytest.mark.role("any", why="it sends ECHO")
async def test_call_that_cannot_be_written_fails_alone(sender: Sender) -> None:
    nothing: Any = None
    around = [sender.send("ECHO", "before", repeatable=True)]
    bad = [
        sender.send("ECHO", nothing, repeatable=True),
        sender.send("ECHO", "\ud800", repeatable=False),
        sender.send(nothing, repeatable=True),
    ]
    around.append(sender.send("ECHO", "after", repeatable=False))
    assert await asyncio.gather(*around) == [b"before", b"after"]
    for call in bad:
        with pytest.raises(CallerError, match="cannot be sent"):
            await call
    assert sender.connections == 1


async def test_script_takes_effect_before_a_later_call_though_the_server_did_not_know_it(
    own_url: str,
) -> None:
    script = script_of("return redis.call('SET', KEYS[1], ARGV[1])")
    async with sender_to(own_url) as sender:
        run_script(sender, script, "key", "seen")
        assert await sender.send("GET", "key", repeatable=True) == b"seen"


async def test_flushed_scripts_are_sent_again_in_order(own_url: str) -> None:
    push = script_of(PUSH)
    other = script_of(f"-- the same, under another digest\n{PUSH}")
    async with sender_to(own_url) as sender, sender_to(own_url) as flusher:
        calls: list[asyncio.Future[Any]] = []
        for number in range(6000):
            calls.append(run_script(sender, push if number % 3 else other, "list", number))
            if number % 400 == 7:
                await calls[-1]
                await flusher.send("SCRIPT", "FLUSH", repeatable=True)
            elif number % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        stored = await sender.send("LRANGE", "list", 0, -1, repeatable=True)
        errors = await sender.send("INFO", "errorstats", repeatable=True)
    assert [int(row) for row in stored] == list(range(6000))
    fired = re.search(rb"errorstat_NOSCRIPT:count=(\d+)", errors)
    assert fired is not None
    assert int(fired[1]) >= 15
    assert sender.connections == 1


async def test_unknown_digest_without_a_script_is_refused(sender: Sender) -> None:
    with pytest.raises(CommandRefused):
        await sender.send("EVALSHA", "0" * 40, 0, repeatable=True)


async def test_refused_command_is_typed_and_harms_no_other(sender: Sender, key: str) -> None:
    await sender.send("SET", key, "text", "PX", 60000, repeatable=True)
    before = sender.send("GET", key, repeatable=True)
    wrong = sender.send("RPUSH", key, "x", repeatable=True)
    unknown = sender.send("NOSUCHCOMMAND", repeatable=True)
    after = sender.send("GET", key, repeatable=True)
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await wrong
    with pytest.raises(CommandRefused, match="unknown command"):
        await unknown
    assert await before == await after == b"text"


async def test_full_server_is_store_full_and_reads_go_on(own_url: str) -> None:
    script = script_of("return redis.call('SET', KEYS[1], ARGV[1])")
    async with sender_to(own_url) as sender:
        await sender.send("SET", "key", "old", repeatable=True)
        await sender.send("CONFIG", "SET", "maxmemory", 1, repeatable=True)
        with pytest.raises(StoreFull):
            await sender.send("SET", "key", "new", repeatable=True)
        with pytest.raises(StoreFull):
            await run_script(sender, script, "key", "new")
        assert await sender.send("GET", "key", repeatable=True) == b"old"


async def test_missing_right_is_command_refused(own_url: str) -> None:
    async with sender_to(own_url) as sender:
        rules = ("on", ">pw", "~mine:*", "+@all", "-config")
        await sender.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
    async with sender_to(own_url.replace("unix://", "unix://narrow:pw@")) as sender:
        with pytest.raises(CommandRefused, match=r"not permitted.*permissions"):
            await sender.send("GET", "other", repeatable=True)
        with pytest.raises(CommandRefused, match=r"not permitted.*config"):
            await sender.send("CONFIG", "GET", "maxmemory", repeatable=True)
        assert await sender.send("GET", "mine:x", repeatable=True) is None


async def test_sender_whose_user_may_not_ping_still_works(own_url: str) -> None:
    async with sender_to(own_url) as sender:
        rules = ("on", ">pw", "~*", "+get")
        await sender.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
    async with sender_to(own_url.replace("unix://", "unix://narrow:pw@")) as sender:
        assert await sender.send("GET", "x", repeatable=True) is None


async def test_server_that_cannot_save_is_full_and_says_what_to_do() -> None:
    options = ("--enable-protected-configs", "yes")
    with short_directory() as directory, run_server(directory, *options) as url:
        gone = directory / "gone"
        gone.mkdir()
        async with sender_to(url) as sender:
            await sender.send("SET", "key", "old", repeatable=True)
            await sender.send("CONFIG", "SET", "dir", str(gone), repeatable=True)
            await sender.send("CONFIG", "SET", "save", "3600 1", repeatable=True)
            gone.rmdir()
            await sender.send("BGSAVE", repeatable=True)

            async def failed() -> bool:
                found = await sender.send("INFO", "persistence", repeatable=True)
                return b"rdb_last_bgsave_status:err" in found

            await eventually(failed, "the server could not save")
            with pytest.raises(StoreFull, match=r"cannot write to its disk.*MISCONF"):
                await sender.send("SET", "key", "new", repeatable=True)
            writing = script_of("redis.call('SET', KEYS[1], 'new')")
            with pytest.raises(StoreFull, match="MISCONF") as full:
                await run_script(sender, writing, "key")
            assert writing.digest not in str(full.value)
            assert await sender.send("GET", "key", repeatable=True) == b"old"


async def test_replica_refuses_writes_as_unavailable(own_url: str) -> None:
    async with sender_to(own_url, call_timeout_s=1) as sender:
        await sender.send("REPLICAOF", "127.0.0.1", 1, repeatable=True)
        with pytest.raises(BackendUnavailable, match=r"is a replica.*READONLY"):
            await sender.send("SET", "key", "new", repeatable=True)


async def test_too_few_replicas_are_unavailable(own_url: str) -> None:
    async with sender_to(own_url, call_timeout_s=1) as sender:
        await sender.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
        with pytest.raises(BackendUnavailable, match="NOREPLICAS"):
            await sender.send("SET", "key", "new", repeatable=True)


async def test_a_call_that_was_refused_and_then_not_answered_says_both(own_url: str) -> None:
    async with Proxy(own_url) as proxy, sender_to(proxy.url, call_timeout_s=1.5) as sender:
        await sender.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
        silent_from = monotonic() + 1.1

        def fall_silent(answer: bytes) -> bytes:
            return b"" if b"NOREPLICAS" in answer and monotonic() > silent_from else answer

        proxy.change(fall_silent)
        with pytest.raises(OutcomeUnknown, match=r"NOREPLICAS.*; sent, not answered by"):
            await sender.send("SET", "key", "new", repeatable=True)
        assert proxy.changed


async def test_busy_server_is_unavailable_and_recovers(own_url: str) -> None:
    forever = script_of("while true do end")
    async with sender_to(own_url) as sender, sender_to(own_url) as other:
        await sender.send("CONFIG", "SET", "busy-reply-threshold", 50, repeatable=True)
        # A connection made now answers while the script runs, as one made later does not.
        await other.send("PING", repeatable=True)
        running = run_script(sender, forever, "key")

        async def busy() -> bool:
            try:
                await other.send("GET", "key", repeatable=True)
            except BackendUnavailable as error:
                return "BUSY" in str(error)
            return False

        await eventually(busy, "the server is busy")
        await other.send("SCRIPT", "KILL", repeatable=True)
        with pytest.raises(CommandRefused):
            await running


async def test_closed_sender_refuses_calls_and_may_be_closed_again(sender: Sender) -> None:
    await sender.send("PING", repeatable=True)
    await sender.aclose()
    with pytest.raises(BackendUnavailable, match="the store is closed"):
        await sender.send("PING", repeatable=True)
    await sender.aclose()
    assert sender.pending == 0


async def test_close_lets_queued_calls_finish(sender: Sender, key: str, settings: Settings) -> None:
    calls = [sender.send("RPUSH", key, number, repeatable=False) for number in range(500)]
    sender.send("PEXPIRE", key, 60000, repeatable=True)
    await asyncio.gather(sender.aclose(), sender.aclose())
    assert [await call for call in calls] == list(range(1, 501))
    async with sender_to(settings.url.get_secret_value()) as other:
        assert await other.send("LLEN", key, repeatable=True) == 500


async def test_close_without_patience_gives_every_call_an_outcome(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    async with Proxy(url) as proxy, sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.deafen()
        sent = [sender.send("PING", repeatable=True) for _ in range(10)]
        await eventually(lambda: proxy.swallowed > 0, "they are in flight")
        queued = [sender.send("PING", repeatable=True) for _ in range(10)]
        await sender.aclose(drain_s=0)
        outcomes = await asyncio.gather(*sent, *queued, return_exceptions=True)
    assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes[:10])
    assert all(isinstance(outcome, BackendError) for outcome in outcomes[10:])


async def test_close_that_is_cancelled_still_disconnects(own_url: str) -> None:
    async with sender_to(own_url) as sender, sender_to(own_url) as watcher:
        blocked = sender.send("BLPOP", "nothing", 0, repeatable=False)

        async def clients() -> int:
            listed = await watcher.send("CLIENT", "LIST", repeatable=True)
            return len(listed.splitlines())

        async def connected() -> bool:
            return await clients() == 2

        await eventually(connected, "the sender is connected")
        closing = asyncio.create_task(sender.aclose(drain_s=60))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(BackendUnavailable):
            await blocked

        async def gone() -> bool:
            return await clients() == 1

        await eventually(gone, "the server lost the connection")


async def test_drain_waits_for_what_is_queued_and_no_longer_than_told(own_url: str) -> None:
    async with sender_to(own_url) as sender:
        await sender.drain(1)
        calls = [sender.send("PING", repeatable=True) for _ in range(300)]
        await sender.drain(5)
        assert all(call.done() for call in calls)
        sender.send("BLPOP", "nothing", 0, repeatable=False)
        with pytest.raises(TimeoutError):
            await sender.drain(0.05)


async def test_error_of_a_call_ends_its_task_group() -> None:
    async def both() -> None:
        async with sender_to("redis://127.0.0.1:1", call_timeout_s=0.2) as sender:

            async def call() -> None:
                await sender.send("PING", repeatable=True)

            async with asyncio.TaskGroup() as group:
                group.create_task(call())
                group.create_task(call())

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert caught.group_contains(BackendUnavailable, match="127.0.0.1:1")


async def test_errors_of_calls_are_objects_of_their_own(sender: Sender, key: str) -> None:
    await sender.send("SET", key, "text", "PX", 60000, repeatable=True)
    calls = [sender.send("RPUSH", key, "x", repeatable=True) for _ in range(3)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, BackendError | RedisStateError) for error in errors)
    assert len({id(error) for error in errors}) == 3
