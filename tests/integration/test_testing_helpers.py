"""What `redis_state.testing` gives to the tests of whoever builds on the store."""

from __future__ import annotations

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.testing import (
    eventually,
    leaked_keys,
    redis_state_server,
    redis_state_store,
)
from tests.samples import admin, update

__all__ = ["redis_state_server", "redis_state_store"]


async def test_the_fixture_gives_a_working_store(redis_state_store: RedisStateStore) -> None:
    await redis_state_store.save_update(update("u", 1))
    assert len(await redis_state_store.list_updates("session")) == 1


async def test_a_condition_that_never_holds_is_named() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.03 s: pigs fly"):
        await eventually(lambda: False, "pigs fly", timeout_s=0.03)


async def test_the_value_of_a_condition_that_holds_is_returned() -> None:
    values = iter([0, "", "this"])

    async def later() -> object:
        return next(values)

    assert await eventually(later, "a value comes") == "this"


async def test_keys_that_would_stay_for_ever_are_named(
    settings: Settings, store: RedisStateStore
) -> None:
    prefix = f"{settings.namespace}:v1:{{x}}"
    names = [f"{prefix}:{number:04}" for number in range(1500)]
    for name in names:
        await admin(store, "SET", name, "", "PX", 60_000)
    await admin(store, "SET", f"{prefix}:watch", "")
    await admin(store, "PERSIST", names[7])
    assert await leaked_keys(settings) == [names[7]]
    await admin(store, "DEL", names[7])
    assert await leaked_keys(settings) == []
