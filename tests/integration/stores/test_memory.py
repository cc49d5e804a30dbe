from __future__ import annotations

from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore, Settings, VersionConflict
from redis_state.testing import eventually
from tests.support.samples import changed


async def test_an_empty_state_is_a_state(store: RedisStateStore) -> None:
    await store.save_memory_state("key", {})
    assert await store.load_memory_state("key") == {}


async def test_the_last_save_wins_as_a_whole(store: RedisStateStore) -> None:
    await store.save_memory_state("key", {"a": 1, "b": 2})
    await store.save_memory_state("key", {"b": 3})
    assert await store.load_memory_state("key") == {"b": 3}


async def test_a_stored_state_shares_nothing_with_the_callers(store: RedisStateStore) -> None:
    state = {"turns": [1]}
    await store.save_memory_state("key", state)
    state["turns"].append(2)
    loaded = await store.load_memory_state("key")
    assert loaded is not None
    assert loaded == {"turns": [1]}
    loaded["turns"].append(3)
    assert await store.load_memory_state("key") == {"turns": [1]}


@pytest.mark.parametrize("value", [0, "", [], {}, False, None, 0.0, -0.0, 2**63, 1e300, "é\x00"])
async def test_falsy_and_odd_values_come_back_exactly(store: RedisStateStore, value: Any) -> None:
    await store.save_memory_state("key", {"value": value})
    loaded = await store.load_memory_state("key")
    assert loaded is not None
    assert loaded == {"value": value}
    assert type(loaded["value"]) is type(value)


@pytest.mark.parametrize("state", [None, [], "text", 5])
async def test_a_state_that_is_no_mapping_is_refused_by_name(
    store: RedisStateStore, state: Any
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.save_memory_state("key", state)
    assert caught.value.field == "state"


async def test_a_save_may_ask_for_the_version_it_read(store: RedisStateStore) -> None:
    assert await store.memory.save("key", {"n": 1}, expected_version=0) == 1
    loaded = await store.memory.load("key")
    assert loaded == ({"n": 1}, 1)
    assert await store.memory.save("key", {"n": 2}, expected_version=1) == 2
    with pytest.raises(VersionConflict) as caught:
        await store.memory.save("key", {"n": 3}, expected_version=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)


async def test_a_deleted_state_is_gone(store: RedisStateStore) -> None:
    await store.save_memory_state("key", {"n": 1})
    assert await store.memory.delete("key") is True
    assert await store.memory.delete("key") is False
    assert await store.load_memory_state("key") is None


async def test_a_state_lives_as_long_as_it_is_set_to(settings: Settings) -> None:
    async with changed(settings, memory_ttl="PT0.05S") as store:
        await store.save_memory_state("key", {"n": 1})

        async def gone() -> bool:
            return await store.load_memory_state("key") is None

        await eventually(gone, "the memory state expires")
