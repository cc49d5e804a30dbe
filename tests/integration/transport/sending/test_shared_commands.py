"""Calls of one script that share a command: each as if it had its own."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from redis_state.errors import (
    BackendUnavailable,
    CallerError,
    CommandRefused,
    OutcomeUnknown,
    StoreFull,
)
from redis_state.scripts.loader import Library, lua_folder
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from redis_state.transport.wire.resp import prepare
from redis_state.transport.wire.script import Script
from tests.support.servers.faults import Proxy, sender_to

# Counts first, so that a call that fails is seen to have begun.
PUSH = """\
redis.call('INCR', KEYS[2])
redis.call('RPUSH', KEYS[1], ARGV[1])
return { ARGV[1], ARGV[2] or '' }
"""


def each_of(body: str, *, about: str = "Do it") -> Script:
    keys = "-- KEYS key    list: n\n-- KEYS count  string: n\n"
    text = f"-- {about}.\n{keys}-- @each\n{body}\n"
    part = lua_folder() / "lib" / "call" / "each.lua"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lib").mkdir()
        (Path(folder) / "lib" / "each.lua").write_text(part.read_text(encoding="utf-8"))
        (Path(folder) / "script.lua").write_text(text)
        return Library(Path(folder)).load("script")


def push(
    sender: Sender,
    script: Script,
    *arguments: Any,
    key: str = "list",
    repeatable: bool = False,
    timeout_s: float | None = None,
) -> asyncio.Future[Any]:
    prepared = prepare(script, (key, "count"))
    return sender.run(prepared, arguments, repeatable=repeatable, timeout_s=timeout_s)


async def sharing(sender: Sender, *scripts: Script) -> None:
    """Wait until calls share commands: the server was asked, and knows the scripts."""
    for script in scripts:
        await push(sender, script, 0, key="first")
    await sender.send("DEL", "first", "count", repeatable=True)
    await sender.send("CONFIG", "RESETSTAT", repeatable=True)


async def keep_busy(actor: Sender, seen_by: Sender) -> None:
    """Let a script run for ever, and wait until commands are refused for it."""
    await actor.send("CONFIG", "SET", "busy-reply-threshold", 1, repeatable=True)
    actor.send("EVAL", "while true do end", 0, repeatable=False)

    async def refuses() -> bool:
        found = await asyncio.gather(
            seen_by.send("GET", "x", repeatable=True), return_exceptions=True
        )
        return isinstance(found[0], BackendUnavailable)

    await eventually(refuses, "the server is busy")


async def runs(sender: Sender) -> int:
    """Count the commands that ran a script."""
    stats = await sender.send("INFO", "commandstats", repeatable=True)
    return sum(map(int, re.findall(rb"cmdstat_eval(?:sha)?:calls=(\d+)", stats)))


async def stored(sender: Sender, key: str = "list") -> list[int]:
    return [int(row) for row in await sender.send("LRANGE", key, 0, -1, repeatable=True)]


async def test_neighbours_share_a_command_and_each_has_its_reply(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        replies = await asyncio.gather(*(push(sender, script, n) for n in range(1 + 24 + 24 + 3)))
        assert replies == [[b"%d" % n, b""] for n in range(52)]
        assert await stored(sender) == list(range(52))
        assert await runs(sender) == 4
        assert sender.pending == 0


@pytest.mark.fuzz
async def test_any_mixture_takes_effect_in_the_order_of_the_calls(own_url: str) -> None:
    scripts = [each_of(PUSH), each_of(PUSH, about="Under another digest")]
    async with sender_to(own_url) as sender:
        await sharing(sender, *scripts)
        calls: list[asyncio.Future[Any]] = []
        expected: list[Any] = []
        for number in range(5000):
            kind = random.choice("ssssssttwpl")
            if kind == "p":
                calls.append(sender.send("RPUSH", "list", number, repeatable=False))
                expected.append(number + 1)
            else:
                more = {"w": ["more"], "l": range(200)}.get(kind, [])
                calls.append(push(sender, scripts[kind == "t"], number, *more))
                expected.append([b"%d" % number, str(next(iter(more), "")).encode()])
            if random.random() < 0.02:
                await asyncio.sleep(0)
        assert await asyncio.gather(*calls) == expected
        assert await stored(sender) == list(range(5000))
        scripted = sum(isinstance(reply, list) for reply in expected)
        assert await runs(sender) < scripted / 1.4


async def test_a_call_that_fails_fails_alone(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        await sender.send("SET", "text", "x", repeatable=True)
        calls = [
            push(sender, script, n, key="text" if n in {0, 5, 9} else "list") for n in range(10)
        ]
        # Not the server's refusals but Lua's: it concatenates nothing, and errors of any kind.
        broken = each_of("if ARGV[1] == '1' then return ARGV[1] .. nil end error(ARGV[2] and nil)")
        failing = [push(sender, broken, 1), push(sender, broken, 1)]
        strange = [push(sender, broken, 2), push(sender, broken, 2)]
        outcomes = await asyncio.gather(*calls, *failing, *strange, return_exceptions=True)
        assert await runs(sender) <= 4
        assert all(isinstance(error, CommandRefused) for error in outcomes[12:])
        outcomes = outcomes[:12]
        refused = [outcomes[n] for n in (0, 5, 9)]
        assert all(isinstance(error, CommandRefused) for error in (*refused, *outcomes[10:]))
        assert all("WRONGTYPE" in str(error) for error in refused)
        assert all("attempt to concatenate" in str(error) for error in outcomes[10:])
        assert len({id(error) for error in refused}) == 3
        assert await stored(sender) == [1, 2, 3, 4, 6, 7, 8]
        assert await sender.send("GET", "count", repeatable=True) == b"10"


async def test_a_call_that_cannot_be_written_fails_alone(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        calls = [push(sender, script, n if n != 3 else object()) for n in range(6)]
        with pytest.raises(CallerError, match="cannot be sent"):
            push(sender, script, 6, key="\ud800")
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(found, CallerError) for found in outcomes] == [n == 3 for n in range(6)]
        assert await stored(sender) == [0, 1, 2, 4, 5]


async def test_a_cancelled_call_leaves_its_share_to_nobody(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        calls = [push(sender, script, n) for n in range(20)]
        for call in calls[::3]:
            call.cancel()
        await sender.drain()
        kept = [call for call in calls if not call.cancelled()]
        assert [int((await call)[0]) for call in kept] == [n for n in range(20) if n % 3]
        # The first was on its way already.
        assert await stored(sender) == [0, *(n for n in range(20) if n % 3)]


async def test_a_right_that_one_call_lacks_is_not_missed_by_the_others(own_url: str) -> None:
    """Nothing tells beforehand, when the server was asked with keys that the user may use."""
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        rules = ("on", ">pw", "~mine", "~count", "~first", "+@all")
        await sender.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
    async with sender_to(own_url.replace("unix://", "unix://narrow:pw@")) as sender:
        await sharing(sender, script)
        for _ in range(2):
            keys = ["other" if n in {2, 30} else "mine" for n in range(40)]
            calls = [push(sender, script, n, key=key) for n, key in enumerate(keys)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [isinstance(found, CommandRefused) for found in outcomes] == [
                key == "other" for key in keys
            ]
        done = [n for n in range(40) if n not in {2, 30}]
        assert sorted((await stored(sender, "mine"))[: len(done)]) == done
        # It was refused once: since then each has its own, and the order is kept. The server does
        # not count what it refuses.
        assert (await stored(sender, "mine"))[len(done) :] == done
        assert await runs(sender) == 2 * len(done)


@pytest.mark.parametrize("key", ["a:{one}:x", "{one}"])
async def test_nothing_is_shared_where_keys_of_two_slots_are_refused(
    own_url: str, key: str
) -> None:
    """A user's rights are a server's slots here: it is asked with a key of another slot."""
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        rules = ("on", ">pw", f"~{key}", "~count", "+@all")
        await sender.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
        await sender.send("CONFIG", "RESETSTAT", repeatable=True)
    async with sender_to(own_url.replace("unix://", "unix://narrow:pw@")) as sender:
        for _ in range(2):
            await asyncio.gather(*(push(sender, script, n, key=key) for n in range(10)))
        assert await stored(sender, key) == [*range(10), *range(10)]
        assert await runs(sender) == 20


async def test_a_question_that_a_busy_server_refuses_is_asked_again(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender, sender_to(own_url) as other:
        await sender.send("PING", repeatable=True)
        await keep_busy(other, sender)
        with pytest.raises(BackendUnavailable):
            await push(sender, script, 0)
        await sender.send("SCRIPT", "KILL", repeatable=True)
        await other.drain()
        await sharing(sender, script)
        assert await asyncio.gather(*(push(sender, script, n) for n in range(10)))
        assert await runs(sender) == 2
        assert sender.connections == 1


async def test_what_is_large_makes_nobody_wait(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        calls = [push(sender, script, n, bytes(20_000 if n == 5 else 1)) for n in range(10)]
        replies = await asyncio.gather(*calls)
        assert [len(reply[1]) for reply in replies] == [20_000 if n == 5 else 1 for n in range(10)]
        assert await stored(sender) == list(range(10))
        # The first found nothing on its way; then four, the large one, and four.
        assert await runs(sender) == 4


async def test_a_script_that_says_nothing_says_it_to_each(own_url: str) -> None:
    script = each_of("if ARGV[1] ~= '3' then return { ARGV[1] } end")
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        replies = await asyncio.gather(*(push(sender, script, n) for n in range(6)))
        assert replies == [[b"%d" % n] if n != 3 else None for n in range(6)]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_command_that_is_refused_as_a_whole_is_refused_to_each(
    own_url: str, *, busy: bool
) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender, sender_to(own_url) as other:
        await sharing(sender, script)
        if busy:
            await keep_busy(other, sender)
        else:
            await other.send("REPLICAOF", "127.0.0.1", "1", repeatable=True)
        calls = [push(sender, script, n, timeout_s=0.5) for n in range(10)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        # Those that are asked again just before their deadline are not answered by it.
        assert {type(found) for found in outcomes} <= {BackendUnavailable, OutcomeUnknown}
        if busy:
            await sender.send("SCRIPT", "KILL", repeatable=True)
            await other.drain()
        else:
            await other.send("REPLICAOF", "NO", "ONE", repeatable=True)
        assert await asyncio.gather(*(push(sender, script, n) for n in range(3)))
        assert await stored(sender) == [0, 1, 2]


async def test_a_full_server_refuses_each(own_url: str) -> None:
    script = each_of(PUSH)
    async with sender_to(own_url) as sender:
        await sharing(sender, script)
        await sender.send("CONFIG", "SET", "maxmemory", 1, repeatable=True)
        calls = [push(sender, script, n) for n in range(30)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(found) for found in outcomes] == [StoreFull] * 30, outcomes[:2]
        await sender.send("CONFIG", "SET", "maxmemory", 0, repeatable=True)
        assert await sender.send("EXISTS", "list", "count", repeatable=True) == 0


async def test_flushed_scripts_are_sent_again_in_order(own_url: str) -> None:
    script, other = each_of(PUSH), each_of(PUSH, about="Under another digest")
    async with sender_to(own_url) as sender, sender_to(own_url) as flusher:
        await sharing(sender, other, script)
        calls: list[asyncio.Future[Any]] = []
        for number in range(6000):
            calls.append(push(sender, other if number % 50 > 40 else script, number))
            if number % 400 == 7:
                await calls[-1]
                await flusher.send("SCRIPT", "FLUSH", repeatable=True)
            elif number % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert await stored(sender) == list(range(6000))
        errors = await sender.send("INFO", "errorstats", repeatable=True)
    fired = re.search(rb"errorstat_NOSCRIPT:count=(\d+)", errors)
    assert fired is not None
    assert int(fired[1]) >= 15
    assert sender.connections == 1


async def test_cuts_at_any_moment_lose_no_call_and_mix_up_no_reply(own_url: str) -> None:
    add = each_of("redis.call('SADD', KEYS[1], ARGV[1]) return { ARGV[1] }")
    await _answers(own_url)
    async with Proxy(own_url) as proxy, sender_to(proxy.url) as sender:

        async def call(number: int) -> int:
            await asyncio.sleep(number % 100 / 100)
            return int((await push(sender, add, number, key="set", repeatable=True))[0])

        # A busy machine makes fewer cuts in a round.
        while proxy.cuts <= 10:
            calls = [asyncio.create_task(call(number)) for number in range(3000)]
            pending = set(calls)
            while pending:
                proxy.cut()
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert [await task for task in calls] == list(range(3000))
        assert await sender.send("SCARD", "set", repeatable=True) == 3000


async def test_calls_that_may_not_be_repeated_are_outcome_unknown_and_done_once(
    own_url: str,
) -> None:
    script = each_of(PUSH)
    await _answers(own_url)
    async with (
        Proxy(own_url) as proxy,
        sender_to(proxy.url) as sender,
        sender_to(own_url) as check,
    ):
        await sharing(sender, script)
        proxy.silence()
        calls = [push(sender, script, n) for n in range(5)]

        async def done() -> bool:
            return await stored(check) == list(range(5))

        await eventually(done, "the server has done the calls")
        proxy.silence(silent=False)
        assert proxy.cut()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(found, OutcomeUnknown) for found in outcomes)
        assert await push(sender, script, 5) == [b"5", b""]
        assert await done() is False
        assert await stored(sender) == list(range(6))


async def test_replies_that_do_not_fit_the_calls_reach_nobody(own_url: str) -> None:
    """A script that is marked as one for several calls, and is not."""
    plain = each_of("return { 1 }")
    text = "return { 1, 2, 3 }"
    wrong = Script(plain.name, text, "0" * 40, each=True, idempotent=False)
    async with sender_to(own_url) as sender:
        await sharing(sender, plain)
        sender.send("PING", repeatable=True)
        calls = [push(sender, wrong, n) for n in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(found, OutcomeUnknown) for found in outcomes)
        assert await push(sender, plain, 1) == [1]
        assert sender.connections == 2


async def _answers(url: str) -> None:
    async with sender_to(url) as sender:
        await sender.send("PING", repeatable=True, timeout_s=10)
