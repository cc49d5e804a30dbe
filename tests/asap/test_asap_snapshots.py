"""The Redis stores behind ASAP's own protocols, compared with ASAP's own stores."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import ConfigError, InvalidField, RedisStateStore, Settings
from redis_state.integrations.asap import (
    AsyncRedisSnapshotStore,
    RedisSnapshotStore,
    create_async_snapshot_store,
    create_snapshot_store,
)
from tests.asap import real
from tests.support.servers.faults import run_processes

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WITHIN_S = 60


def shot(version: int, task_id: str = "t", **more: Any) -> Any:
    given_: dict[str, Any] = {"id": f"s{version}", "data": {"n": version}, "created_at": NOW}
    return real.StateSnapshot(task_id=task_id, version=version, **{**given_, **more})


@pytest.fixture
def options(settings: Settings) -> dict[str, str]:
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace}


@pytest.fixture
def blocking(options: dict[str, str]) -> Iterator[Any]:
    with create_snapshot_store(**options) as store:
        yield store


def test_both_stores_fit_their_protocols_and_are_of_the_right_colour(
    options: dict[str, str],
) -> None:
    blocking, waiting = create_snapshot_store(**options), create_async_snapshot_store(**options)
    assert isinstance(blocking, real.state.SnapshotStore)
    assert isinstance(waiting, real.state.AsyncSnapshotStore)
    for name in ("save", "get", "list_versions", "delete"):
        assert not inspect.iscoroutinefunction(getattr(blocking, name))
        assert inspect.iscoroutinefunction(getattr(waiting, name))
        theirs = inspect.signature(getattr(real.stores.InMemorySnapshotStore, name))
        for ours in (RedisSnapshotStore, AsyncRedisSnapshotStore):
            parameters = inspect.signature(getattr(ours, name)).parameters
            assert list(parameters) == list(theirs.parameters)
            for known, parameter in parameters.items():
                assert parameter.default == theirs.parameters[known].default
                assert parameter.kind == theirs.parameters[known].kind


def test_create_app_takes_either_and_hands_it_to_its_handlers(options: dict[str, str]) -> None:
    manifest = real.failover.create_worker_app(1, snapshot_store=create_snapshot_store(**options))
    assert type(manifest.state.snapshot_store) is RedisSnapshotStore
    for store in (create_snapshot_store(**options), create_async_snapshot_store(**options)):
        agent = real.load("asap.models.entities")
        app = real.server.create_app(
            agent.Manifest(
                id="urn:asap:agent:one",
                name="One",
                version="0.1.0",
                description="d",
                capabilities=agent.Capability(asap_version="0.1", skills=[]),
                endpoints=agent.Endpoint(asap="http://127.0.0.1:1/asap"),
            ),
            snapshot_store=store,
        )
        assert app.state.snapshot_store is store


# The same calls on ASAP's own store

_VERSIONS = st.integers(1, 12) | st.just(2**53) | st.just(2**53 + 1)
_TASKS = st.sampled_from(["t", "t:1", "t*", ""])
_CALLS = st.lists(
    st.tuples(st.just("save"), _TASKS, _VERSIONS, st.booleans())
    | st.tuples(st.just("delete"), _TASKS, st.none() | _VERSIONS)
    | st.tuples(st.just("get"), _TASKS, st.none() | _VERSIONS | st.just(0))
    | st.tuples(st.just("list_versions"), _TASKS),
    min_size=5,
    max_size=30,
)


def test_every_call_answers_as_asaps_own_store_does(blocking: Any) -> None:
    happened: set[str] = set()

    def play(store: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        answers: list[Any] = []
        for kind, *rest in calls:
            if kind == "save":
                task, version, checkpoint = rest
                snapshot = shot(version, task, checkpoint=checkpoint, id=f"i{len(answers)}")
                answers.append(store.save(snapshot))
            else:
                answers.append(getattr(store, kind)(*rest))
        return answers

    @given(_CALLS)
    def compare(calls: list[tuple[Any, ...]]) -> None:
        for task in ("t", "t:1", "t*", ""):
            blocking.delete(task)
        answers = play(blocking, calls)
        assert answers == play(real.stores.InMemorySnapshotStore(), calls)
        happened.update(
            f"{call[0]} {bool(each)}" for call, each in zip(calls, answers, strict=True)
        )

    compare()
    assert {"delete True", "delete False", "get True", "list_versions True"} <= happened


# What ASAP's own stores, and the one drawn in its guide, get wrong


def test_many_threads_share_one_store(blocking: Any) -> None:
    together = threading.Barrier(10, timeout=WITHIN_S)

    def save(number: int) -> list[int]:
        together.wait()
        for version in range(number + 1, 201, 10):
            blocking.save(shot(version))
            assert blocking.get("t", version) == shot(version)
        return list(blocking.list_versions("t"))

    with ThreadPoolExecutor(10) as threads:
        futures = [threads.submit(save, number) for number in range(10)]
        seen = [future.result(WITHIN_S) for future in futures]
    assert all(each == sorted(each) for each in seen)
    assert blocking.list_versions("t") == list(range(1, 201))


async def test_it_answers_under_a_running_loop_and_to_the_loops_threads(blocking: Any) -> None:
    blocking.save(shot(1))
    async with asyncio.timeout(WITHIN_S):
        found = await asyncio.gather(*(asyncio.to_thread(blocking.get, "t") for _ in range(20)))
    assert found == [shot(1)] * 20
    assert blocking.get("t") == shot(1)


async def test_the_other_kind_sees_the_same_snapshots(
    blocking: Any, options: dict[str, str], store: RedisStateStore
) -> None:
    blocking.save(shot(3, checkpoint=True))
    async with create_async_snapshot_store(**options) as waiting:
        assert await waiting.get("t") == shot(3, checkpoint=True)
        await waiting.save(shot(4))
        assert blocking.list_versions("t") == [3, 4] == await waiting.list_versions("t")
        assert await waiting.by_id("t", "s3") == blocking.last_checkpoint("t")
        assert await waiting.last_checkpoint("t") == blocking.by_id("t", "s3")
        assert await waiting.rollback("t") == shot(3, checkpoint=True)
        assert await waiting.prune("t", keep_last=0) == 0
        assert await waiting.delete("t")
    assert await store.snapshots.get("t") is None


def test_what_sqlite_or_json_lose_comes_back(blocking: Any) -> None:
    data = {"id": 1, "set": {1}, "pair": (1,), "bytes": b"\xff", "at": NOW, "nan": math.nan}
    naive = NOW.replace(tzinfo=None)
    blocking.save(shot(2**70, data=data, created_at=naive))
    found = blocking.get("t", 2**70)
    assert math.isnan(found.data.pop("nan"))
    assert found.data == {key: value for key, value in data.items() if key != "nan"}
    assert (found.created_at, found.created_at.tzinfo) == (naive, None)
    found.data["set"].add(2)
    assert blocking.get("t").data["set"] == {1}


def test_an_id_with_globs_or_colons_reaches_no_other_task(blocking: Any) -> None:
    names = ["t", "t:1", "t:*", "*", "t:1:2", "[t]", "?"]
    for name in names:
        blocking.save(shot(1, name))
    assert blocking.delete("*")
    assert blocking.delete("t:*")
    assert [blocking.list_versions(name) for name in names] == [[1], [1], [], [], [1], [1], [1]]


@pytest.mark.parametrize(
    ("bad", "field"),
    [({"data": {"a": object()}}, "data.a"), ({"version": 1 << 2048}, "version")],
)
def test_what_cannot_be_kept_is_a_value_error_that_names_it(
    blocking: Any, bad: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        blocking.save(shot(bad.pop("version", 1), **bad))
    assert isinstance(caught.value, InvalidField)
    assert blocking.list_versions("t") == []


async def test_ten_writer_processes_of_four_threads_lose_nothing(
    blocking: Any, options: dict[str, str]
) -> None:
    arguments = [{**options, "versions": list(range(n + 1, 401, 10))} for n in range(10)]
    assert await run_processes("save_asap_snapshots", arguments) == [[]] * 10
    assert blocking.list_versions("shared") == list(range(1, 401))
    assert blocking.get("shared").data == {"n": 400}


# Names of the environment


@pytest.mark.parametrize("named", ["memory", " Memory "])
def test_the_backends_of_asap_are_asaps_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    monkeypatch.setenv("ASAP_STORAGE_BACKEND", named)
    assert type(create_snapshot_store()) is real.stores.InMemorySnapshotStore
    assert type(create_async_snapshot_store()) is real.stores.AsyncInMemorySnapshotStore
    monkeypatch.setenv("ASAP_STORAGE_BACKEND", "sqlite")
    monkeypatch.setenv("ASAP_STORAGE_PATH", str(tmp_path / "state.db"))
    kept = create_snapshot_store()
    assert type(kept) is real.stores.SQLiteSnapshotStore
    kept.save(shot(1))
    assert (tmp_path / "state.db").exists()
    waiting = create_async_snapshot_store(db_path=tmp_path / "other.db")
    assert type(waiting) is real.stores.SQLiteAsyncSnapshotStore


@pytest.mark.parametrize("named", ["redis", " REDIS\n", None])
def test_redis_is_one_more_backend_and_the_default_of_this_factory(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], named: str | None
) -> None:
    monkeypatch.delenv("ASAP_STORAGE_BACKEND", raising=False)
    if named is not None:
        monkeypatch.setenv("ASAP_STORAGE_BACKEND", named)
    monkeypatch.setenv("REDIS_STATE_URL", options["url"])
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", options["namespace"])
    with create_snapshot_store() as store:
        store.save(shot(1))
        assert store.get("t") == shot(1)
    assert type(create_async_snapshot_store()) is AsyncRedisSnapshotStore
    monkeypatch.setenv("ASAP_STORAGE_BACKEND", "memory")
    assert type(create_async_snapshot_store("redis")) is AsyncRedisSnapshotStore


@pytest.mark.parametrize("make", [create_snapshot_store, create_async_snapshot_store])
def test_another_backend_is_refused_as_asap_refuses_it(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setenv("ASAP_STORAGE_BACKEND", "postgres")
    with pytest.raises(ValueError, match="ASAP_STORAGE_BACKEND: 'postgres' is none of memory"):
        make()
    with pytest.raises(ValueError, match="backend: 'mongo' is none of"):
        create_async_snapshot_store("mongo")
    monkeypatch.delenv("ASAP_STORAGE_BACKEND")
    with pytest.raises(ConfigError, match="unknown option 'colour'"):
        create_snapshot_store(colour="red")


def test_a_password_of_the_address_is_in_no_text(options: dict[str, str]) -> None:
    for make in (create_snapshot_store, create_async_snapshot_store):
        assert "hunter2" not in repr(make(url="redis://me:hunter2@127.0.0.1:1/0"))
