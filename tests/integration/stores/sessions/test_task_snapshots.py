from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import strategies as st

from redis_state import CorruptState, InvalidField, RedisStateStore, Settings
from redis_state.models import Snapshot
from redis_state.primitives.record import Records
from redis_state.scripts import Scripts
from redis_state.stores.base import Base
from redis_state.stores.hosts.snapshots import SnapshotStore, version_name
from redis_state.transport.keys import Keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import ask, lives
from tests.support.servers.faults import run_processes

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ODD_IDS = [
    "t", "", "t:1", "t:*", "*", "?", "[a-z]", "{t}", "t}", "a b", "é", "e\u0301", "\x00", "\n",
    "%", "%25", "v:0011", "\udcff", "x" * 10_000, "x" * 10_001,
]  # fmt: skip


def shot(
    version: int, task_id: str = "t", *, snapshot_id: str | None = None, **more: Any
) -> Snapshot:
    given: dict[str, Any] = {"data": {"n": version}, "created_at": NOW}
    return Snapshot(
        f"s{version}" if snapshot_id is None else snapshot_id, task_id, version, **{**given, **more}
    )


async def test_numbers_are_in_order_beyond_nine_and_beyond_what_a_double_holds(
    store: RedisStateStore,
) -> None:
    versions = [10, 2**53 + 1, 9, 1, 2**53, 2**53 + 2, 10**40, 100]
    for version in versions:
        await store.snapshots.save(shot(version))
    assert await store.snapshots.versions("t") == sorted(versions)
    for version in versions:
        assert await store.snapshots.get("t", version) == shot(version)
    assert await store.snapshots.get("t") == shot(10**40)
    assert await store.snapshots.get("t", 2**53 + 3) is None


async def test_a_save_replaces_the_whole_row_and_the_last_one_wins(store: RedisStateStore) -> None:
    await store.snapshots.save(shot(1, snapshot_id="a", checkpoint=True, data={"old": 1}))
    await store.snapshots.save(shot(2))
    await store.snapshots.save(shot(1, snapshot_id="b", data={"new": 2}))
    assert await store.snapshots.get("t", 1) == shot(1, snapshot_id="b", data={"new": 2})
    assert await store.snapshots.get("t") == shot(2)
    assert await store.snapshots.last_checkpoint("t") is None
    assert await store.snapshots.by_id("t", "a") is None


async def test_what_is_not_there_is_none_and_nothing(store: RedisStateStore) -> None:
    assert await store.snapshots.get("t") is None
    assert await store.snapshots.get("t", 1) is None
    assert await store.snapshots.get("t", 0) is None
    assert await store.snapshots.get("t", -1) is None
    assert await store.snapshots.versions("t") == []
    assert not await store.snapshots.delete("t")
    assert not await store.snapshots.delete("t", 0)
    assert await store.snapshots.rollback("t") is None
    assert await store.snapshots.rollback("t", to=0) is None
    assert await store.snapshots.prune("t", keep_last=0) == 0
    await store.snapshots.save(shot(1))
    assert not await store.snapshots.delete("t", 0), "0 stands for no version, not for all"
    assert await store.snapshots.delete("t", 1)
    assert await ask(store.base.scripts, "EXISTS", *_keys_of(store)[:2]) == 0
    await store.snapshots.save(shot(1))
    assert await store.snapshots.get("t") == shot(1)


async def test_no_id_bleeds_into_another(store: RedisStateStore) -> None:
    ids = [*ODD_IDS, "t:1:2"]
    for task in ids:
        for number, snapshot_id in enumerate(ids):
            await store.snapshots.save(shot(number + 1, task, snapshot_id=snapshot_id))
    for task in ids:
        found = [await store.snapshots.by_id(task, snapshot_id) for snapshot_id in ids]
        assert found == [shot(n + 1, task, snapshot_id=one) for n, one in enumerate(ids)]
    for number, task in enumerate(ids):
        assert await store.snapshots.delete(task)
        left = [await store.snapshots.versions(other) for other in ids]
        assert [bool(each) for each in left] == [n > number for n in range(len(ids))]


@pytest.mark.parametrize(
    "created_at",
    [
        NOW.replace(tzinfo=None),
        NOW.astimezone(timezone(timedelta(hours=-3, minutes=-30, seconds=-7))),
        datetime.min,  # noqa: DTZ901 - naive on purpose
        datetime.max,  # noqa: DTZ901
    ],
)
async def test_a_moment_comes_back_with_its_own_offset_or_none(
    store: RedisStateStore, created_at: datetime
) -> None:
    await store.snapshots.save(shot(1, created_at=created_at))
    found = await store.snapshots.get("t")
    assert found is not None
    assert (found.created_at, found.created_at.utcoffset()) == (created_at, created_at.utcoffset())


async def test_the_state_comes_back_exactly_and_is_a_copy(store: RedisStateStore) -> None:
    data: dict[str, Any] = {"id": 1, "version": "x", "set": {1}, "pair": (1, [2]), "at": NOW}
    await store.snapshots.save(shot(1, data={**data, "nan": math.nan}))
    data["pair"][1].append(3)
    found, again = await asyncio.gather(store.snapshots.get("t"), store.snapshots.get("t"))
    assert found is not None
    assert again is not None
    assert math.isnan(found.data.pop("nan"))
    assert found.data == {**data, "pair": (1, [2])}
    assert "nan" in again.data
    big = shot(2, data={"text": "x" * 5_000_000})
    await store.snapshots.save(big)
    assert await store.snapshots.get("t") == big
    assert "xxx" not in repr(big)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"version": "1"}, "version"),
        ({"version": 1.0}, "version"),
        ({"version": 1 << 2048}, "version"),
        ({"id": None}, "id"),
        ({"task_id": 7}, "task_id"),
        ({"data": [1]}, "data"),
        ({"data": None}, "data"),
        ({"data": {"secret": {"key": object()}}}, "data.secret.key"),
        ({"created_at": "2026-01-01"}, "created_at"),
    ],
)
async def test_bad_input_is_named_and_saves_nothing(
    store: RedisStateStore, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.snapshots.save(replace(shot(1), **wrong))
    assert caught.value.field == field
    assert await store.snapshots.versions("t") == []


async def test_questions_of_a_wrong_kind_are_refused(store: RedisStateStore) -> None:
    ask_for: Any = store.snapshots
    for call in (
        ask_for.get("t", "1"), ask_for.delete("t", version=True), ask_for.rollback("t", to=1.5)
    ):  # fmt: skip
        with pytest.raises(InvalidField, match="version: a whole number is needed"):
            await call
    for keep in (-1, True, 2.0, "5", None):
        with pytest.raises(InvalidField, match="keep_last: a whole number"):
            await ask_for.prune("t", keep_last=keep)
    for call in (ask_for.get(None), ask_for.versions(3), ask_for.by_id("t", None)):
        with pytest.raises(InvalidField, match="text is needed"):
            await call


async def test_a_row_that_cannot_be_read_is_an_error_and_kept_aside(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.snapshots.save(shot(1))
    await store.snapshots.save(shot(2))
    rows = _keys_of(store)[0]
    await ask(store.base.scripts, "HSET", rows, "0012", b'[1,{"hunter2":')
    with pytest.raises(CorruptState, match="version 2 cannot be read") as caught:
        await store.snapshots.get("t")
    assert "hunter2" not in str(caught.value) + caplog.text
    assert await store.snapshots.get("t", 1) == shot(1)
    assert [note.place for note in await store.base.unreadable("t")] == ["snapshot 2"]
    await store.snapshots.save(shot(2))
    assert await store.snapshots.get("t") == shot(2)


async def test_a_tasks_snapshots_live_on_together_from_its_last_save(settings: Settings) -> None:
    brief = settings.model_copy(update={"snapshots_ttl": timedelta(seconds=50)})
    async with RedisStateStore(brief) as store:
        await store.snapshots.save(shot(1))
        await ask(store.base.scripts, "PEXPIRE", _keys_of(store)[0], 1000)
        await store.snapshots.save(shot(2))
        left = await lives(store.base.scripts, *_keys_of(store)[:2])
        assert all(1000 < life <= 50_000 for life in left)


async def test_clearing_a_session_leaves_snapshots(store: RedisStateStore) -> None:
    await store.snapshots.save(shot(1, "s"))
    await store.clear_session("s")
    assert await store.snapshots.get("s") == shot(1, "s")


async def test_ten_processes_write_one_task_and_every_version_is_there(
    store: RedisStateStore, settings: Settings
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "task": "shared",
    }
    missed = await run_processes(
        "save_snapshots",
        [
            {**argument, "name": f"p{number}", "versions": list(range(number + 1, 201, 10))}
            for number in range(10)
        ],
    )
    assert missed == [[]] * 10
    assert await store.snapshots.versions("shared") == list(range(1, 201))
    for version in (1, 9, 10, 199, 200):
        found = await store.snapshots.get("shared", version)
        assert found is not None
        assert found.data == {"actor": f"p{(version - 1) % 10}", "n": version}
    last = await store.snapshots.last_checkpoint("shared")
    assert last is not None
    assert last.version == 200
    assert await store.snapshots.prune("shared", keep_last=5) == 200 - 5 - 19
    assert len(await store.snapshots.versions("shared")) == 24


def _keys_of(store: RedisStateStore, task: str = "t") -> tuple[str, str]:
    keys = store.snapshots.keys(task)
    return keys.rows, keys.index


# Against a plain Python model

_VERSIONS = st.sampled_from([1, 2, 3, 9, 10, 11, 2**53, 2**53 + 1])
_TASKS = st.sampled_from(["t", "t:1"])
Step = tuple[Any, ...]
_STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.just("save"), _TASKS, _VERSIONS, st.booleans(), st.sampled_from("ab"))
    | st.tuples(st.just("delete"), _TASKS, st.none() | _VERSIONS)
    | st.tuples(st.just("rollback"), _TASKS, st.none() | _VERSIONS)
    | st.tuples(st.just("prune"), _TASKS, st.integers(0, 3), st.booleans()),
    min_size=12,
    max_size=25,
)


class Model:
    """What a task's snapshots are, as a dict."""

    def __init__(self) -> None:
        self.rows: dict[int, Snapshot] = {}

    def top(self, *, checkpoint: bool = False, snapshot_id: str | None = None) -> Snapshot | None:
        found = [
            row
            for _, row in sorted(self.rows.items())
            if (row.checkpoint or not checkpoint) and snapshot_id in {None, row.id}
        ]
        return found[-1] if found else None

    def drop(self, versions: Sequence[int]) -> int:
        for version in versions:
            del self.rows[version]
        return len(versions)

    def rollback(self, to: int | None) -> Snapshot | None:
        kept = self.top(checkpoint=True) if to is None else self.rows.get(to)
        if kept is not None:
            self.drop([version for version in self.rows if version > kept.version])
        return kept

    def prune(self, keep_last: int, *, keep_checkpoints: bool) -> int:
        ordered = sorted(self.rows)
        older = ordered[: max(0, len(ordered) - keep_last)]
        spared = [v for v in older if keep_checkpoints and self.rows[v].checkpoint]
        return self.drop([v for v in older if v not in spared])


async def _take(real: SnapshotStore, model: Model, step: Step) -> str:
    kind, task, *rest = step
    if kind == "save":
        version, checkpoint, snapshot_id = rest
        snapshot = shot(version, task, snapshot_id=snapshot_id, checkpoint=checkpoint)
        happened = "replaced" if version in model.rows else "added"
        model.rows[version] = snapshot
        await real.save(snapshot)
        return happened
    if kind == "delete":
        (target,) = rest
        gone = [v for v in model.rows if target in {None, v}]
        assert await real.delete(task, target) is bool(model.drop(gone))
        return "deleted" if gone else "nothing to delete"
    if kind == "rollback":
        before = len(model.rows)
        kept = model.rollback(rest[0])
        assert await real.rollback(task, to=rest[0]) == kept
        return "rolled back" if len(model.rows) < before else "kept all"
    keep_last, keep_checkpoints = rest
    spares = len(model.rows) > keep_last and model.top(checkpoint=True) is not None
    removed = model.prune(keep_last, keep_checkpoints=keep_checkpoints)
    pruned = await real.prune(task, keep_last=keep_last, keep_checkpoints=keep_checkpoints)
    assert pruned == removed
    return "pruned beside checkpoints" if removed and spares else "pruned"


async def _play(scripts: Scripts, steps: Sequence[Step]) -> Sequence[str]:
    settings = scripts.transport.settings
    keys = Keys(settings.namespace)
    real = SnapshotStore(Base(settings, keys, scripts, Records(scripts)))
    models = {"t": Model(), "t:1": Model()}
    for task in models:
        await real.delete(task)
    happened: list[str] = []
    for step in steps:
        happened.append(await _take(real, models[step[1]], step))
        for task, model in models.items():
            assert await real.versions(task) == sorted(model.rows)
            assert await real.get(task) == model.top()
            assert await real.last_checkpoint(task) == model.top(checkpoint=True)
            for snapshot_id in "ab":
                assert await real.by_id(task, snapshot_id) == model.top(snapshot_id=snapshot_id)
    return happened


@pytest.mark.fuzz
def test_any_sequence_of_calls_does_what_a_dict_would(settings: Settings) -> None:
    explore(
        settings,
        _STEPS,
        _play,
        wanted={"added", "replaced", "deleted", "rolled back", "pruned beside checkpoints"},
    )


def test_names_of_versions_stand_in_the_order_of_their_numbers() -> None:
    numbers = [1, 9, 10, 11, 99, 100, 2**53, 2**53 + 1, 2**64, 10**99, 10**100, (1 << 2048) - 1]
    names = [version_name(number) or "" for number in numbers]
    assert names == sorted(names)
