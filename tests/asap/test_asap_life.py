"""The blocking store from its first call to its end: threads, forks, exits, lost servers."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from redis_state import BackendUnavailable, ConfigError, Settings
from redis_state.integrations.asap import create_snapshot_store
from tests.asap import real
from tests.support.processes import children
from tests.support.servers.faults import importing

WITHIN_S = 60
_THREAD = "redis_state snapshots"


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == _THREAD}


@pytest.fixture
def options(settings: Settings) -> dict[str, str]:
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace}


def test_making_one_does_nothing_and_closing_ends_its_thread(options: dict[str, str]) -> None:
    before = threads()
    with create_snapshot_store(**options) as store:
        assert threads() == before
        assert store.get("t") is None
        (mine,) = threads() - before
    assert not mine.is_alive()
    store.close()
    with pytest.raises(ConfigError, match="closed"):
        store.get("t")


def test_the_last_reference_ends_its_thread(options: dict[str, str]) -> None:
    before = threads()
    store = create_snapshot_store(**options)
    store.list_versions("t")
    (mine,) = threads() - before
    known = weakref.ref(store)
    del store
    gc.collect()
    assert known() is None
    mine.join(WITHIN_S)
    assert not mine.is_alive()


def test_a_server_that_is_not_there_is_a_typed_error_in_time() -> None:
    with (
        create_snapshot_store(url="redis://127.0.0.1:1/0", call_timeout_s=0.2) as store,
        pytest.raises(BackendUnavailable),
    ):
        store.list_versions("t")


_EXIT = """
import sys
from redis_state.integrations.asap import create_snapshot_store
store = create_snapshot_store(url=sys.argv[1], namespace=sys.argv[2])
assert store.list_versions("t") == []
"""
_FORK = """
import os, sys
from datetime import UTC, datetime
from redis_state.integrations.asap import create_snapshot_store
from redis_state.integrations.asap.package import load
kind = load("asap.models.entities").StateSnapshot
store = create_snapshot_store(url=sys.argv[1], namespace=sys.argv[2])
def save(version):
    store.save(kind(id="s", task_id="t", version=version, data={}, created_at=datetime.now(UTC)))
save(1)
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        for version in range(10 * number + 10, 10 * number + 20):
            save(version)
            assert store.get("t", version).version == version
        store.close()
        os._exit(7)
    children.append(child)
for version in range(100, 110):
    save(version)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [7, 7, 7], codes
save(2)
"""


def run(code: str, options: dict[str, str], *flags: str) -> None:
    ran = children.run(
        [sys.executable, *flags, "-c", code, options["url"], options["namespace"]],
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
        env=importing(),
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_process_that_never_closes_it_ends_without_a_word(options: dict[str, str]) -> None:
    run(_EXIT, options, "-W", "error::ResourceWarning")


def test_forked_processes_and_their_parent_all_write(options: dict[str, str]) -> None:
    run(_FORK, options, "-W", "ignore::DeprecationWarning")
    with create_snapshot_store(**options) as store:
        assert store.list_versions("t") == [1, 2, *range(10, 40), *range(100, 110)]


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asap.models.entities", None)
    make: Any = create_snapshot_store
    with pytest.raises(ConfigError, match="install asap-protocol"):
        make(url="redis://127.0.0.1:1/0")
    assert real.state
