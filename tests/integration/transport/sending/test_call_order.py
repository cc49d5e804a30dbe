"""Calls of one loop take effect in the order they are made, also behind one that was refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.scripts import SCRIPTS, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.sending.sender import Sender
from tests.support.once_calls import CASES
from tests.support.servers.faults import sender_to

# Those of which one call makes what is removed.
REMOVALS = [
    "clear_log",
    "clear_task",
    "delete_blob",
    "delete_record",
    "delete_session",
    "drop_a2a_configs",
]


async def refusals(url: str, code: str) -> int:
    """Count how often a server has refused a call with this code."""
    async with sender_to(url) as sender:
        stats: bytes = await sender.send("INFO", "errorstats", repeatable=True)
    _, _, found = stats.partition(f"errorstat_{code}:count=".encode())
    return int(found.split(b"\r\n")[0]) if found else 0


@pytest.mark.parametrize("name", REMOVALS)
async def test_a_removal_behind_a_write_whose_script_was_flushed_removes_what_it_wrote(
    name: str, settings: Settings, own_url: str
) -> None:
    case = CASES[name]
    keys, other = Keys("disturbed"), Keys("undisturbed")
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    async with RedisStateStore(settings) as calm:
        await case.make(calm.base.scripts, other)
        expected = await case.call(calm.base.scripts, other)
    async with RedisStateStore(settings) as store, sender_to(own_url) as flusher:
        scripts = store.base.scripts
        # This connection knows the write's script, and sends the removal's with its text.
        await case.make(scripts, Keys("warm"))
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        before = await refusals(own_url, "NOSCRIPT")
        _, removed = await asyncio.gather(case.make(scripts, keys), case.call(scripts, keys))
        assert removed == expected
        assert await case.look(scripts, keys) == await case.look(scripts, other)
    assert await refusals(own_url, "NOSCRIPT") > before


async def test_a_read_behind_a_write_whose_script_was_flushed_sees_it(
    settings: Settings, own_url: str
) -> None:
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    async with RedisStateStore(settings) as store, sender_to(own_url) as flusher:
        await store.save_memory_state("warm", {"n": 0})
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        _, found = await asyncio.gather(
            store.save_memory_state("key", {"n": 1}), store.load_memory_state("key")
        )
        assert found == {"n": 1}
    assert await refusals(own_url, "NOSCRIPT")


async def test_a_removal_that_is_made_again_leaves_what_others_wrote_elsewhere(
    settings: Settings, own_url: str
) -> None:
    """It overtook a call that has nothing to do with it: it is a repetition, and does nothing."""
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    remove, make = CASES["delete_record"].call, CASES["delete_record"].make
    keys = Keys("n")
    async with (
        RedisStateStore(settings) as store,
        RedisStateStore(settings) as another,
        sender_to(own_url) as flusher,
    ):
        scripts = store.base.scripts
        await make(scripts, keys)
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        saving = asyncio.create_task(store.save_memory_state("elsewhere", {"n": 1}))
        removing = asyncio.ensure_future(remove(scripts, keys))
        # Another client writes as soon as it is removed; the repetition comes at any time.
        theirs = asyncio.create_task(_write_when_gone(another, keys))
        await asyncio.gather(saving, removing, theirs)
        assert await CASES["delete_record"].look(scripts, keys) == b"theirs"
    assert await refusals(own_url, "NOSCRIPT")


async def _write_when_gone(store: RedisStateStore, keys: Keys) -> None:
    scripts = store.base.scripts

    async def gone() -> Any:
        return not await scripts.transport.commands.exists(keys.memory("m"))

    await eventually(gone, "the record is removed")
    await CASES["delete_record"].make(scripts, keys)


# A removal, and what is written behind it.
PAIRS = {
    "delete_snapshots all": "save_snapshot",
    "drop_a2a_configs": "put_a2a_config",
    "run_once token": "save_oauth_token",
}


@pytest.mark.parametrize("name", PAIRS)
async def test_a_write_behind_a_removal_whose_script_was_flushed_is_kept(
    name: str, settings: Settings, own_url: str
) -> None:
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    write = CASES[PAIRS[name]]

    def remove(scripts: Scripts, keys: Keys) -> Awaitable[Any]:
        if name in CASES:
            return CASES[name].call(scripts, keys)
        return scripts.run_once("DEL", keys.oauth_token("u", "p"))

    keys, other = Keys("disturbed"), Keys("undisturbed")
    async with RedisStateStore(settings) as calm:
        await write.make(calm.base.scripts, other)
        expected = (
            await remove(calm.base.scripts, other),
            await write.call(calm.base.scripts, other),
        )
    async with RedisStateStore(settings) as store, sender_to(own_url) as flusher:
        scripts = store.base.scripts
        await write.make(scripts, keys)
        # This connection knows the removal's script, and sends the write's with its text.
        await remove(scripts, Keys("warm"))
        sender = cast("Sender", scripts.transport.sender)
        sender._loaded.discard(SCRIPTS[PAIRS[name]].digest)
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        found = await asyncio.gather(remove(scripts, keys), write.call(scripts, keys))
        assert tuple(found) == expected
        assert await write.look(scripts, keys) == await write.look(scripts, other)
    assert await refusals(own_url, "NOSCRIPT")


async def test_what_is_called_behind_a_refused_call_about_something_else_keeps_its_reply(
    settings: Settings, own_url: str
) -> None:
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    keys = Keys("n")
    async with RedisStateStore(settings) as store, sender_to(own_url) as flusher:
        scripts, sender = store.base.scripts, store.transport.sender
        await sender.send("SET", "list", "old", "PX", 60_000, repeatable=True)
        await CASES["delete_record"].call(scripts, keys)
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        refused = asyncio.ensure_future(CASES["delete_record"].call(scripts, keys))
        read = scripts.transport.commands.get("list")
        written = sender.send("GETSET", "list", "new", repeatable=True)
        await refused
        # Neither is made twice: the second time each would find what the second wrote.
        assert [await read, await written] == [b"old", b"old"]
    assert await refusals(own_url, "NOSCRIPT")


async def test_thousands_of_calls_behind_a_flush_are_sorted_out_in_no_time(
    settings: Settings, own_url: str
) -> None:
    settings = settings.model_copy(update={"url": SecretStr(own_url)})
    case, count = CASES["delete_record"], 2_000
    async with RedisStateStore(settings) as store, sender_to(own_url) as flusher:
        scripts = store.base.scripts
        await case.make(scripts, Keys("warm"))
        await flusher.send("SCRIPT", "FLUSH", repeatable=True)
        places = [Keys(f"n{number}") for number in range(count)]
        compared = 0
        follows = Sender._follows

        def counting(self: Sender, call: Any) -> bool:
            nonlocal compared
            compared += 1
            return follows(self, call)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sender, "_follows", counting)
            made = [asyncio.ensure_future(case.make(scripts, keys)) for keys in places]
            removed = [asyncio.ensure_future(case.call(scripts, keys)) for keys in places]
            await asyncio.gather(*made, *removed)
        assert compared <= count
        assert [await case.look(scripts, keys) for keys in places[:50]] == [None] * 50
    assert await refusals(own_url, "NOSCRIPT")


def test_scripts_that_keep_their_reply_are_idempotent_or_known_not_to_be() -> None:
    keeping = {name for name, script in SCRIPTS.items() if script.once}
    idempotent = {name for name, script in SCRIPTS.items() if script.idempotent}
    # An upload is used up. A schedule, a queue, a rate and a batch go on to what is next. A stream
    # takes the same row again, and one that is deleted is missing.
    assert keeping - idempotent == {
        *("commit_blob", "end_job", "claim_jobs", "claim_parked", "take_rate"),
        "withdraw_jobs",
        *("add_item", "append_stream", "delete_stream"),
    }
    assert idempotent <= keeping
