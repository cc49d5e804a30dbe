"""The stored document of a memory: expired, unreadable, of another shape, or newer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redis_state import (
    InvalidField,
    RedisStateStore,
    VersionConflict,
)
from redis_state.memory import SessionMemory
from tests.support.memory import (
    KEY,
    config,
    full_turn,
    memory_of,
    names_in,
    stored,
    turn,
)
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy


async def test_a_memory_that_expired_begins_anew(store: RedisStateStore) -> None:
    memory = memory_of(store)
    await memory.add_turn(turn("old"))
    assert await store.memory.delete(KEY.composite())
    await memory.add_turn(turn("new"))
    assert names_in(await stored(store)) == ["new"]


async def test_a_document_that_cannot_be_read_is_set_aside_and_written_over(
    store: RedisStateStore,
) -> None:
    await store.memory.save(KEY.composite(), {})
    key = store.base.keys.memory(KEY.composite())
    await store.transport.sender.send("HSET", key, "document", "not JSON", repeatable=True)
    await memory_of(store).add_turn(turn("1"))
    assert names_in(await stored(store)) == ["1"]
    (aside,) = await store.unreadable(memory_key=KEY.composite())
    assert aside.row == "not JSON"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("health", "fine"),
        ("turns", "text"),
        ("pending", [1]),
        ("backlog", {"a": 1}),
    ],
)
async def test_a_document_that_is_no_memory_is_refused_by_name_and_left_alone(
    store: RedisStateStore, field: str, value: Any
) -> None:
    document = {"version": 1, "health": "healthy", field: value}
    await store.memory.save(KEY.composite(), document)
    memory = memory_of(store)
    for call in (memory.hydrate(), memory.add_turn(turn("1"))):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == field
    assert await stored(store) == document


async def test_a_save_that_always_loses_gives_up_with_the_facts(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.memory.session._MOST_CONFLICTS", 2)

    async def overtake() -> None:
        await memory_of(store, strategy="truncation").add_turn(turn("faster"))

    async with (
        CommandProxy(store.settings.url.get_secret_value()) as proxy,
        changed(store.settings, url=proxy.url) as far,
    ):
        memory = memory_of(far)
        with (
            proxy.meanwhile("save_record", overtake, times=None),
            pytest.raises(VersionConflict) as caught,
        ):
            await memory.add_turn(turn("slow"))
        assert int(caught.value.actual) >= 1
        await memory.persist()
    assert names_in(await stored(store))[-1] == "slow"


async def test_nothing_is_read_or_written_by_the_strategy_none(store: RedisStateStore) -> None:
    memory = memory_of(store, strategy="none")
    await memory.add_turn(turn("1"))
    await memory.hydrate()
    await memory.persist()
    await memory.flush()
    assert await memory.get_llm_context() == {}
    assert await store.load_memory_state(KEY.composite()) is None


async def test_one_try_is_enough_where_nobody_else_saves(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.memory.session._MOST_CONFLICTS", 1)
    memory = memory_of(store)
    await memory.add_turn(turn("1"))
    assert names_in(await stored(store)) == ["1"]


def test_a_summarizer_is_needed_for_summaries() -> None:
    with pytest.raises(InvalidField) as caught:
        SessionMemory(None, KEY, config=config())
    assert caught.value.field == "summarizer"


async def test_the_key_of_another_session_is_refused(store: RedisStateStore) -> None:
    memory = memory_of(store)
    await memory.hydrate(store, "acme:ana:s-1")
    for call in (memory.hydrate(store, "acme:ana:s-2"), memory.persist(store, "acme:eve:s-1")):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == "key"


async def test_what_a_memory_shows_of_itself_belongs_to_whoever_asked(
    store: RedisStateStore,
) -> None:
    memory = memory_of(store)
    added: Any = full_turn("1")
    added.trajectory_digest.tools_invoked = [{"tool": ["t"]}]
    await memory.add_turn(added)
    before, context = json.dumps(memory.to_dict()), json.dumps(await memory.get_llm_context())
    shown: Any = await memory.get_llm_context()
    for digest in (
        memory.to_dict()["turns"][0]["trajectory_digest"],
        shown["conversation_memory"]["recent_turns"][0]["trajectory_digest"],
    ):
        digest["tools_invoked"][0]["tool"].append("masked")
        digest.clear()
    memory.to_dict()["turns"][0]["artifacts_shown"].clear()
    assert json.dumps(memory.to_dict()) == before
    assert json.dumps(await memory.get_llm_context()) == context
    given = memory.to_dict()
    memory.from_dict(given)
    given["turns"][0]["artifacts_shown"]["a"]["b"].append("masked")
    assert json.dumps(memory.to_dict()["turns"]) == json.dumps(json.loads(before)["turns"])
