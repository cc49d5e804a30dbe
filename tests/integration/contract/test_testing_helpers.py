"""What `redis_state.testing` gives to the tests of whoever builds on the store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually, leaked_keys
from redis_state.testing.stores import open_store
from tests.support.processes import children
from tests.support.samples import admin, update
from tests.support.servers.faults import run_python


async def test_the_fixture_gives_a_working_store(redis_state_store: RedisStateStore) -> None:
    await redis_state_store.save_update(update("u", 1))
    assert len(await redis_state_store.list_updates("session")) == 1


async def test_no_variable_leads_a_tests_store_elsewhere(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    from redis_state.testing.conformance.orders import WorkerOrder  # noqa: PLC0415 - the extra
    from redis_state.testing.pool import Pool  # noqa: PLC0415 - the extra

    monkeypatch.setenv("REDIS_STATE_QUEUE_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("REDIS_STATE_PASSWORD_FILE", "/nowhere")
    monkeypatch.setenv("REDIS_STATE_DURABLE_EVENTS", "postgresql://127.0.0.1:1/production")
    monkeypatch.setenv("REDIS_STATE_ARCHIVE_URL", "postgresql://127.0.0.1:1/production")
    order = WorkerOrder(
        reference="",
        url=own_url,
        namespace="n",
        payload_keys=None,
        folder="",
        name="",
        kill=[],
        hold=[],
        lease_s=1.0,
        grace_s=1.0,
        parent=0,
    )
    async with open_store(own_url) as store, Pool({}, url=own_url) as pool:
        for settings in (store.settings, pool.settings, order.settings()):
            assert settings.queue_url is None
            assert settings.password_file is None
            assert settings.durable_events is None
            assert settings.archive_url is None
        assert (await store.health()).ok


async def test_a_condition_that_never_holds_is_named() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.03 s: pigs fly"):
        await eventually(lambda: False, "pigs fly", timeout_s=0.03)


async def test_the_value_of_a_condition_that_holds_is_returned() -> None:
    values = iter([0, "", "this"])

    async def later() -> object:
        return next(values)

    assert await eventually(later, "a value comes") == "this"


@pytest.mark.role("admin")
async def test_keys_that_would_stay_for_ever_are_named(
    settings: Settings, store: RedisStateStore
) -> None:
    prefix = f"{settings.namespace}:v1:{{x}}"
    names = [f"{prefix}:{number:04}" for number in range(1500)]
    for name in names:
        await admin(store, "SET", name, "", "PX", 60_000)
    await admin(store, "PERSIST", names[7])
    assert await leaked_keys(settings) == [names[7]]
    await admin(store, "DEL", names[7])
    assert await leaked_keys(settings) == []


TESTS = """
import sys

import pytest


def test_that_asks_for_nothing():
    assert not [name for name in sys.modules if name.split(".")[0] in ("redis_state", "redis")]


@pytest.mark.asyncio
async def test_mine(redis_state_server, redis_state_store):
    assert redis_state_store.settings.url.get_secret_value() == redis_state_server.url
    assert (await redis_state_store.health()).ok
"""
WITHOUT = """
import sys


class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pytest_asyncio":
            raise ImportError(name)


sys.meta_path.insert(0, Without)
"""
# Unset, it is a warning of pytest-asyncio's own.
LOOPS = "--override-ini=asyncio_default_fixture_loop_scope=function"
_UNUSED = ("randomly", "hypothesispytest", "xdist")
NAMED = 'pytest_plugins = ["redis_state.testing"]\n'


async def run_pytest(folder: Path, *options: str, conftest: str = "", **environment: str) -> str:
    """Run these tests as somebody who has installed the package does, warnings being errors."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    quiet = ("-q", *(word for name in _UNUSED for word in ("-p", f"no:{name}")), *children.LEAN)
    return await run_python("-m", "pytest", *quiet, *options, str(folder), environment=environment)


async def test_pytest_finds_the_fixtures_by_itself(tmp_path: Path) -> None:
    assert "2 passed" in await run_pytest(tmp_path, "-o", "asyncio_mode=strict", LOOPS)


@pytest.mark.parametrize(
    ("found", "mode"), [(True, "auto"), (False, "strict")], ids=["found", "not found"]
)
async def test_a_conftest_may_name_the_fixtures_whether_pytest_has_found_them_or_not(
    tmp_path: Path, mode: str, *, found: bool
) -> None:
    environment = {} if found else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    named = () if found else ("-p", "pytest_asyncio.plugin")
    options = (*named, "-o", f"asyncio_mode={mode}", "-k", "mine", LOOPS)
    ran = await run_pytest(tmp_path, *options, conftest=NAMED, **environment)
    assert "1 passed" in ran


async def test_tests_that_ask_for_nothing_run_where_there_is_no_pytest_asyncio(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    ran = await run_pytest(
        tmp_path,
        *("-p", "no:asyncio", "-k", "nothing", "-W", "default::pytest.PytestUnknownMarkWarning"),
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    )
    assert "1 passed" in ran


async def test_what_processes_use_needs_no_pytest() -> None:
    await run_python(
        "-c", "import sys; sys.modules['pytest'] = None; from redis_state.testing import eventually"
    )
