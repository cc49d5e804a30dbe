"""Calls of one loop take effect in the order they are made, also behind one that was refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.scripts import SCRIPTS
from tests.faults import sender_to
from tests.integration.test_repeated_calls import CASES

# Those of which one call of a script makes what is removed.
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
        return not await scripts.ask("EXISTS", keys.memory("m"))

    await eventually(gone, "the record is removed")
    await CASES["delete_record"].make(scripts, keys)


def test_only_scripts_that_remember_their_call_are_removals() -> None:
    removals = {name for name, script in SCRIPTS.items() if script.removes}
    assert removals >= set(REMOVALS)
    for name in removals:
        text = SCRIPTS[name].text
        assert "-- KEYS[2] call " in text
        assert "call_noted(call)" in text
