"""RedisSaver's checkpoints are deleted, pruned, copied, sealed, and kept for so long."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from cryptography.fernet import Fernet
from langgraph.types import Command
from pydantic import SecretStr

from redis_state import (
    PayloadTooLarge,
    PayloadUnreadable,
    RedisStateStore,
    Settings,
)
from redis_state.integrations.langgraph import RedisSaver
from tests.support.agents.checkpoints import listed, put
from tests.support.agents.graphs import asking, config_of, counting


async def test_a_run_is_deleted_with_what_no_other_needs(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    graph = counting(saver)
    for run in ("r1", "r2"):
        config = config_of("t")
        config["metadata"] = {"run_id": run}
        await graph.ainvoke({"log": [run]}, config)
    kept = await listed(saver, config_of("t"), filter={"run_id": "r2"})
    await saver.adelete_for_runs(["r1"])
    assert await listed(saver, config_of("t")) == kept


async def test_what_is_left_after_pruning_is_what_the_newest_needs(
    store: RedisStateStore,
) -> None:
    saver = RedisSaver(store)
    graph = counting(saver, steps=5)
    await graph.ainvoke({"log": ["x"]}, config_of("t"))
    newest = await saver.aget_tuple(config_of("t"))
    await saver.aprune(["t"])
    assert await listed(saver, config_of("t")) == [newest]
    key = store.base.keys.graph_thread("t")
    fields = (await store.base.scripts.transport.commands.hgetall(key))[::2]
    assert {field[:1] for field in fields} <= {b"r", b"b"}
    assert len([field for field in fields if field.endswith(b" log")]) == 1


async def test_a_pruning_does_not_lose_what_is_put_meanwhile(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    parent = await put(saver, "t", n=0)
    for number in range(30):
        parent = await put(saver, "t", parent=parent, n=number)
    made: list[Any] = await asyncio.gather(
        saver.aprune(["t"]), *(put(saver, "t", parent=parent, branch=number) for number in range(9))
    )
    for config in made[1:]:
        found = await saver.aget_tuple(config)
        if found is not None:
            assert "branch" in found.checkpoint["channel_values"]
    # The newest stays, whichever of them the pruning came to see.
    newest = await saver.aget_tuple(config_of("t"))
    assert newest is not None
    assert newest.checkpoint["channel_values"] == {"branch": 8}


async def test_a_copy_can_be_made_twice_and_stands_alone(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    graph = asking(saver, str, "pay")
    await graph.ainvoke({"log": ["x"]}, config_of("t"))
    for _ in range(2):
        await saver.acopy_thread("t", "u")
    original = await listed(saver, config_of("t"))
    await saver.adelete_thread("t")
    copied = await listed(saver, config_of("u"))
    assert [each[1:3] + each[4:] for each in copied] == [each[1:3] + each[4:] for each in original]
    assert (await graph.ainvoke(Command(resume="yes"), config_of("u")))["log"] == ["x", "pay yes"]


async def test_nothing_of_a_users_values_is_readable_without_the_key(
    store: RedisStateStore, settings: Settings
) -> None:
    keyed = settings.model_copy(update={"payload_keys": SecretStr(Fernet.generate_key().decode())})
    async with RedisStateStore(keyed) as sealed:
        saver = RedisSaver(sealed)
        graph = asking(saver, str, "secret-question")
        config = config_of("t")
        config["metadata"] = {"note": "secret-note"}
        await graph.ainvoke({"log": ["secret-start"]}, config)
        stored = b"".join(
            await store.base.scripts.transport.commands.hgetall(store.base.keys.graph_thread("t"))
        )
        assert b"secret-start" not in stored
        assert b"secret-note" not in stored
        plain = RedisSaver(store)
        with pytest.raises(PayloadUnreadable):
            await plain.aget_tuple(config_of("t"))
        # Who cannot read it can copy it, and prune and delete.
        await plain.acopy_thread("t", "u")
        state = await graph.aget_state(config_of("u"))
        assert state.values["log"] == ["secret-start"]
        # What was written without a key is read as it is: also a value that looks sealed.
        await put(plain, "v", text='\r"sealed:f:abc"')
        found = await saver.aget_tuple(config_of("v"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"text": '\r"sealed:f:abc"'}


async def test_a_value_that_is_too_large_is_refused_before_anything_is_written(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings.model_copy(update={"max_payload_bytes": 1000})) as small:
        saver = RedisSaver(small)
        with pytest.raises(PayloadTooLarge, match=r"channel_values\.big"):
            await put(saver, "t", big="x" * 2000)
        assert await listed(saver, None) == []


async def test_a_thread_lives_from_its_last_write(store: RedisStateStore) -> None:
    saver = RedisSaver(store, lifetime=timedelta(hours=8))
    config = await put(saver, "t", n=1)
    keys = [store.base.keys.graph_thread("t"), store.base.keys.graph_order("t")]
    commands = store.base.scripts.transport.commands
    for write in (put(saver, "t", n=2), saver.aput_writes(config, [("a", 1)], "task")):
        for key in keys:
            await store.base.scripts.transport.sender.send("PEXPIRE", key, 5_000, repeatable=True)
        await write
        assert all([int(await commands.pttl(key)) > 7 * 3_600_000 for key in keys])


async def test_a_saver_shows_no_values(store: RedisStateStore) -> None:
    assert "RedisSaver on <RedisStateStore" in repr(RedisSaver(store))
