"""What `redis_state.testing` gives to the tests of whoever builds on the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually, leaked_keys
from redis_state.testing.fixtures import redis_state_server, redis_state_store
from tests.faults import run_python
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


async def test_they_are_a_plugin_of_pytest(tmp_path: Path) -> None:
    tmp_path.joinpath("conftest.py").write_text('pytest_plugins = ["redis_state.testing"]\n')
    tmp_path.joinpath("test_mine.py").write_text(
        "async def test_mine(redis_state_server, redis_state_store):\n"
        "    assert redis_state_store.settings.url.get_secret_value() == redis_state_server.url\n"
    )
    ran = await run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", str(tmp_path)
    )
    assert "1 passed" in ran


async def test_what_processes_use_needs_no_pytest() -> None:
    await run_python(
        "-c", "import sys; sys.modules['pytest'] = None; from redis_state.testing import eventually"
    )
