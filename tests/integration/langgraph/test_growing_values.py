"""Values that grow are stored as what was added: under pruning, copies, other writers and keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from cryptography.fernet import Fernet
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import SecretStr

from redis_state import CorruptState, RedisStateStore, Settings
from redis_state.integrations.langgraph import RedisSaver
from redis_state.integrations.langgraph.threads.stored.tails import SIGN
from tests.support.agents.graphs import config_of

Saved = tuple[Any, list[Any]]


@pytest.fixture
async def others(settings: Settings) -> AsyncIterator[RedisSaver]:
    """Give the saver of another process: it remembers nothing of this one's."""
    async with RedisStateStore(settings) as store, RedisSaver(store) as saver:
        yield saver


async def put(
    saver: RedisSaver,
    config: Any,
    messages: list[Any],
    *,
    version: Any = None,
    id_: str | None = None,
    **more: Any,
) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id_ or checkpoint["id"]
    given = version or saver.get_next_version(None, None)
    checkpoint["channel_values"] = {"messages": messages, **more}
    checkpoint["channel_versions"] = {"messages": given, **dict.fromkeys(more, given)}
    about: Any = {"source": "loop", "step": len(messages), "run_id": f"r{len(messages) % 2}"}
    return await saver.aput(config, checkpoint, about, checkpoint["channel_versions"])


async def talk(saver: RedisSaver, thread: str, *, turns: int, others: Any = None) -> list[Saved]:
    """Put a conversation that grows by a message a turn; turns with others' saver in between."""
    config, messages, saved = config_of(thread), list[Any](), list[Saved]()
    for turn in range(turns):
        kind = HumanMessage if turn % 2 else AIMessage
        messages = [*messages, kind(f"{turn} {random.random()} " * 10, id=f"{turn}")]
        writer = others if others and turn % 3 == 2 else saver
        config = await put(writer, config, messages)
        saved.append((config, messages))
    return saved


async def stored(store: RedisStateStore, thread: str) -> dict[bytes, bytes]:
    """Return the values of a thread as they are stored."""
    key = store.base.keys.graph_thread(thread)
    found = await store.base.scripts.transport.commands.hgetall(key)
    fields = dict(zip(found[::2], found[1::2], strict=True))
    return {name: value for name, value in fields.items() if name.startswith(b"b")}


async def assert_all_are_there(saver: RedisSaver, saved: list[Saved]) -> None:
    for config, messages in saved:
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == messages


async def test_a_conversation_is_stored_once_and_read_whole(
    store: RedisStateStore, others: RedisSaver
) -> None:
    saver = RedisSaver(store)
    saved = await talk(saver, "t", turns=60)
    values = await stored(store, "t")
    tails = [value for value in values.values() if value.startswith(SIGN)]
    assert len(values) == 60
    assert len(tails) > 50
    alone = saver.serde.dumps_typed(saved[-1][1])[1]
    assert sum(map(len, values.values())) < 8 * len(alone)
    for reader in (saver, others):
        await assert_all_are_there(reader, saved)
        found = [each async for each in reader.alist(config_of("t"), limit=50)]
        messages = [each.checkpoint["channel_values"]["messages"] for each in found]
        assert messages == [each for _, each in saved[:9:-1]]


@pytest.mark.parametrize("turn", [2, 17, 40])
async def test_branches_and_other_writers_continue_what_they_know(
    store: RedisStateStore, others: RedisSaver, turn: int
) -> None:
    saver = RedisSaver(store)
    saved = await talk(saver, "t", turns=41, others=others)
    config, messages = saved[turn]
    for writer in (saver, others):
        # As a graph that goes on in another process: it reads first.
        await writer.aget_tuple(config_of("t"))
        for text in ("changed", "changed again"):
            shorter = [*messages[:-1], HumanMessage(text, id="x")]
            saved.append((await put(writer, config, shorter), shorter))
    await assert_all_are_there(RedisSaver(store), saved)
    assert any(value.startswith(SIGN) for value in (await stored(store, "t")).values())


@pytest.mark.parametrize("left", ["newest", "run"])
async def test_what_is_continued_outlives_pruning_and_goes_with_the_last(
    store: RedisStateStore, others: RedisSaver, left: str
) -> None:
    saver = RedisSaver(store)
    saved = await talk(saver, "t", turns=40)
    if left == "newest":
        await others.aprune(["t"])
        kept = saved[-1:]
    else:
        await others.adelete_for_runs(["r1"])
        kept = saved[1::2]
    assert len([each async for each in others.alist(config_of("t"))]) == len(kept)
    await assert_all_are_there(others, kept)
    values = await stored(store, "t")
    assert any(value.startswith(SIGN) for value in values.values())
    if left == "newest":
        assert len(values) <= 17
    # It goes on, also from what the other process has dropped.
    config, messages = kept[-1]
    grown = [*messages, AIMessage("more")]
    last = await put(saver, config, grown)
    await assert_all_are_there(others, [*kept, (last, grown)])
    await saver.aprune(["t"])
    await assert_all_are_there(others, [(last, grown)])
    config = last
    for _ in range(20):
        config = await put(saver, config, [])
    await saver.aprune(["t"])
    assert len(await stored(store, "t")) == 1


async def test_a_copy_has_what_it_continues(store: RedisStateStore, others: RedisSaver) -> None:
    saver = RedisSaver(store)
    saved = await talk(saver, "t", turns=45)
    # Of one thread nothing is there, of the other all bases have other values.
    await put(others, config_of("u"), ["another"], version=7)
    for _ in range(2):
        for target in ("new", "u"):
            await others.acopy_thread("t", target)
    await saver.adelete_thread("t")
    for target in ("new", "u"):
        there = [(config_of(target, **_id(config)), messages) for config, messages in saved]
        await assert_all_are_there(saver, there)


async def test_a_copy_to_where_versions_are_taken_stands_alone(store: RedisStateStore) -> None:
    saver, versions = RedisSaver(store), range(1, 4)
    messages = ["x" * 600, "y", "z"]
    config = config_of("t")
    for version in versions:
        config = await put(saver, config, messages[:version], version=version)
    assert sum(v.startswith(SIGN) for v in (await stored(store, "t")).values()) == 2
    await put(saver, config_of("u"), ["taken" * 200], version=2)
    await saver.acopy_thread("t", "u")
    found = await saver.aget_tuple(config_of("u", **_id(config)))
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == messages


async def test_a_copy_has_a_value_whose_checkpoint_was_dropped(store: RedisStateStore) -> None:
    """The value was given with what continues it, and the target refused that."""
    saver, long = RedisSaver(store), "x" * 600
    first = await put(saver, config_of("t"), [long], version=1)
    second = await put(saver, first, [long, "y"], version=2)
    await put(saver, second, [long, "y", "z"], version=3)
    # A branch that has the second one's value: its version has one.
    branch = await put(saver, second, [long, "-", "-"], version=2)
    await saver.adelete_for_runs(["r0"])
    assert await saver.aget_tuple(second) is None
    await put(saver, config_of("u"), ["taken" * 200], version=1)
    await saver.acopy_thread("t", "u")
    there = config_of("u", **_id(branch))
    await assert_all_are_there(saver, [(branch, [long, "y"]), (there, [long, "y"])])


async def test_what_continues_a_value_that_is_gone_is_not_continued(
    store: RedisStateStore, others: RedisSaver
) -> None:
    """A checkpoint that is put again leaves its value behind, which no pruning knows."""
    saver, long = RedisSaver(store), "x" * 600
    first = await put(saver, config_of("t"), [long], version=1)
    second = await put(saver, first, [long, "y"], version=2)
    await others.aget_tuple(config_of("t"))
    await put(saver, first, [long, "z"], version=3, id_=_id(second)["checkpoint_id"])
    await saver.aprune(["t"])
    third = await put(others, second, [long, "z", "more"], version=4)
    await assert_all_are_there(saver, [(second, [long, "z"]), (third, [long, "z", "more"])])


async def test_a_thread_whose_rows_were_evicted_is_pruned(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await talk(saver, "t", turns=3)
    # As a server does that evicts keys.
    assert await store.base.scripts.transport.commands.unlink(store.base.keys.graph_thread("t"))
    saved = await talk(saver, "t", turns=3)
    async with asyncio.timeout(20):
        await saver.aprune(["t"])
    await assert_all_are_there(saver, saved[-1:])
    assert len([each async for each in saver.alist(config_of("t"))]) == 1


def _id(config: Any) -> dict[str, str]:
    return {"checkpoint_id": config["configurable"]["checkpoint_id"]}


async def test_a_thread_that_another_process_made_anew_is_not_continued(
    store: RedisStateStore, others: RedisSaver
) -> None:
    """Versions that callers choose come again."""
    saver, long = RedisSaver(store), "x" * 1000
    first = await put(saver, config_of("t"), [long], version=1)
    await others.adelete_thread("t")
    second = await put(others, config_of("t"), ["y" * 1000], version=1)
    third = await put(saver, second, [long, "z"], version=2)
    await assert_all_are_there(others, [(second, ["y" * 1000]), (third, [long, "z"])])
    assert await saver.aget_tuple(first) is None
    # Nor is a value that is not stored, since its version has one.
    fourth = await put(saver, third, [long, "other"], version=2)
    fifth = await put(saver, fourth, [long, "other", "more"], version=3)
    await assert_all_are_there(others, [(fifth, [long, "other", "more"])])


async def test_sealed_values_grow_too(store: RedisStateStore, settings: Settings) -> None:
    keyed = settings.model_copy(update={"payload_keys": SecretStr(Fernet.generate_key().decode())})
    async with RedisStateStore(keyed) as sealed:
        saver = RedisSaver(sealed)
        saved = await talk(saver, "t", turns=20)
        await assert_all_are_there(RedisSaver(sealed), saved)
        await saver.acopy_thread("t", "u")
        there = [(config_of("u", **_id(config)), messages) for config, messages in saved]
        await assert_all_are_there(RedisSaver(sealed), there)
    values = await stored(store, "t")
    assert any(value.startswith(SIGN) for value in values.values())
    assert not any(b"content" in value for value in values.values())


@pytest.mark.parametrize("made", ["buffer", "view"])
async def test_a_serializer_may_write_into_one_buffer(store: RedisStateStore, made: str) -> None:
    class Buffered(JsonPlusSerializer):
        buffer = bytearray()

        def dumps_typed(self, obj: Any) -> tuple[str, Any]:
            kind, data = super().dumps_typed(obj)
            if not isinstance(obj, list):
                return kind, data
            if made == "view":
                return kind, memoryview(data)
            self.buffer[:] = data
            return kind, self.buffer

    saver, long = RedisSaver(store, serde=Buffered()), "x" * 600
    values = ["a" * 400, "b" * 300, "c" * 200]
    config, saved = config_of("t"), list[Saved]()
    for value in values:
        messages = [long, value]
        config = await put(saver, config, messages)
        saved.append((config, messages))
    await assert_all_are_there(RedisSaver(store), saved)
    assert any(value.startswith(SIGN) for value in (await stored(store, "t")).values())


async def test_a_value_without_what_it_continues_is_damaged(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await talk(saver, "t", turns=10)
    whole = [name for name, v in (await stored(store, "t")).items() if not v.startswith(SIGN)]
    key = store.base.keys.graph_thread("t")
    await store.base.scripts.hdel(key, *whole)
    with pytest.raises(CorruptState, match="messages continues is not there"):
        await saver.aget_tuple(config_of("t"))
