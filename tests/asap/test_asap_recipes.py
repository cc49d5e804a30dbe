"""ASAP's own failover and migration examples, and the recipes of its guide, on Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.integrations.asap import create_snapshot_store
from redis_state.testing import eventually
from tests.asap import real
from tests.support.processes import children
from tests.support.servers.faults import start_process

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def shot(version: int, task_id: str = "t", **more: Any) -> Any:
    given: dict[str, Any] = {"id": f"s{version}", "data": {"n": version}, "created_at": NOW}
    return real.StateSnapshot(task_id=task_id, version=version, **{**given, **more})


@pytest.fixture
def options(settings: Settings) -> dict[str, str]:
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace}


@pytest.fixture
def shared(options: dict[str, str]) -> Iterator[Any]:
    with create_snapshot_store(**options) as store:
        yield store


# Failover: ASAP's own worker, twice; the first is killed


@asynccontextmanager
async def serving(
    options: dict[str, str],
) -> AsyncGenerator[tuple[children.Process, str]]:
    process = await start_process("serve_asap", {**options})
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            stated = b" "
            while stated and not stated.startswith(b"port "):
                stated = await process.stdout.readline()
        yield process, f"http://127.0.0.1:{int(stated.split()[1])}"
    finally:
        await children.end(process)


def envelope(kind: str, payload: Any) -> Any:
    return real.Envelope(
        asap_version="0.1",
        sender=real.failover.COORDINATOR_AGENT_ID,
        recipient=real.failover.WORKER_AGENT_ID,
        payload_type=kind,
        payload=payload.model_dump(),
        trace_id=real.generate_id(),
    )


async def ask(base: str, kind: str, payload: Any) -> dict[str, Any]:
    async with real.client.ASAPClient(base) as client:
        answer = await client.send(envelope(kind, payload))
    found: dict[str, Any] = answer.payload_dict
    return found


def work(task: str, step: int) -> Any:
    return real.payloads.TaskRequest(
        conversation_id=real.generate_id(),
        skill_id=real.failover.SKILL_FAILOVER_WORK,
        input={"task_id": task, "step": step},
    )


async def healthy(base: str) -> bool:
    return not await asyncio.to_thread(real.failover._health_failed, base, 1.0)


async def test_the_backup_restores_what_a_killed_primary_saved(
    shared: Any, options: dict[str, str]
) -> None:
    async with serving(options) as (primary, first), serving(options) as (_, backup):
        await eventually(lambda: healthy(first), "the primary is healthy", timeout_s=60)
        for step in (9, 10):
            done = await ask(first, "task.request", work("task", step))
            assert done["status"] == "completed"
        primary.kill()
        await primary.wait()
        assert not await healthy(first)
        await eventually(lambda: healthy(backup), "the backup is healthy", timeout_s=60)

        latest = shared.get("task")
        assert (latest.version, latest.data["step"]) == (10, 10)
        restore = real.payloads.StateRestore
        restored = await ask(
            backup, "state_restore", restore(task_id="task", snapshot_id=latest.id)
        )
        assert restored == {"ok": True, "task_id": "task", "snapshot_id": latest.id}
        unknown = await ask(backup, "state_restore", restore(task_id="task", snapshot_id="no"))
        assert unknown["ok"] is False
        assert (await ask(backup, "task.request", work("task", 11)))["status"] == "completed"
        assert shared.list_versions("task") == [9, 10, 11]
        # ASAP's example knows the id of the latest snapshot only.
        assert shared.by_id("task", latest.id) == latest


# Migration


@pytest.mark.parametrize("source", ["memory", "sqlite", "redis"])
def test_asaps_move_brings_a_state_over_as_it_is(
    shared: Any, options: dict[str, str], settings: Settings, tmp_path: Path, source: str
) -> None:
    makers: dict[str, Any] = {
        "memory": real.stores.InMemorySnapshotStore,
        "sqlite": lambda: real.stores.SQLiteSnapshotStore(db_path=tmp_path / "state.db"),
        "redis": lambda: create_snapshot_store(
            url=options["url"], namespace=f"{settings.namespace}-source"
        ),
    }
    old = makers[source]()
    for version in (1, 2, 3):
        old.save(shot(version, checkpoint=version == 2))
    move = real.migration.move_state_between_agents
    latest = move(old, shared, "t")
    assert shared.get("t") == latest
    second = move(old, shared, "t", version=2, new_task_id="other")
    assert shared.get("other") == second == shared.last_checkpoint("other")
    for moved, original in ((latest, old.get("t")), (second, old.get("t", 2))):
        assert moved.id != original.id
        for same in ("version", "data", "checkpoint", "created_at"):
            assert getattr(moved, same) == getattr(original, same)
    assert move(old, shared, "nobody") is None
    old.delete("t")
    assert shared.get("t") == latest
    if source == "redis":
        old.close()


def test_an_export_can_be_imported_twice(shared: Any) -> None:
    for version in (1, 2):
        shared.save(shot(version))
    exported = [shared.get("t", v).model_dump_json() for v in shared.list_versions("t")]
    shared.delete("t")
    for line in [*exported, *exported]:
        shared.save(real.StateSnapshot.model_validate(json.loads(line)))
    assert [shared.get("t", v) for v in shared.list_versions("t")] == [shot(1), shot(2)]


# The guide's patterns


def walk(store: Any, stop: int | None = None) -> None:
    """Process items as the guide does, a checkpoint after each third, from where it stopped."""
    latest = store.get("t")
    done: dict[str, Any] = latest.data if latest else {"step": 0, "results": []}
    for step in range(done["step"], 10):
        if step == stop:
            return
        done["results"].append(step)
        done["step"] = step + 1
        store.save(shot(step + 1, data=done, id=f"s{step + 1}", checkpoint=(step + 1) % 3 == 0))


def test_a_run_goes_on_where_the_last_one_stopped(shared: Any, options: dict[str, str]) -> None:
    walk(shared, stop=7)
    with create_snapshot_store(**options) as elsewhere:
        walk(elsewhere)
    assert shared.get("t").data == {"step": 10, "results": list(range(10))}
    assert shared.list_versions("t") == list(range(1, 11))


def test_a_rollback_is_to_the_checkpoint_that_the_guides_walk_finds(shared: Any) -> None:
    walk(shared, stop=8)
    found = None
    for version in reversed(shared.list_versions("t")):
        snapshot = shared.get("t", version)
        if snapshot and snapshot.checkpoint:
            found = snapshot
            break
    assert found is not None
    assert shared.rollback("t") == found == shared.get("t") == shared.last_checkpoint("t")
    assert shared.list_versions("t") == [1, 2, 3, 4, 5, 6]
    assert shared.rollback("t", to=4) == shared.get("t", 4)
    walk(shared)
    assert shared.get("t").data["results"] == list(range(10))


@pytest.mark.parametrize("keep_last", [0, 1, 5, 20])
def test_a_clean_up_keeps_what_the_guides_loop_keeps_and_none_is_none(
    shared: Any, keep_last: int
) -> None:
    walk(shared)
    versions = shared.list_versions("t")
    older = versions[:-keep_last] if keep_last else versions
    kept = [v for v in versions if v not in older or shared.get("t", v).checkpoint]
    assert shared.prune("t", keep_last=keep_last) == len(versions) - len(kept)
    assert shared.list_versions("t") == kept
    shared.prune("t", keep_last=keep_last, keep_checkpoints=False)
    assert shared.list_versions("t") == (kept[-keep_last:] if keep_last else [])


async def test_a_store_of_the_core_reads_what_asap_saved(
    shared: Any, store: RedisStateStore
) -> None:
    shared.save(shot(1, data={"a": (1, {2})}))
    found = await store.snapshots.get("t")
    assert found is not None
    assert (found.id, found.data, found.created_at) == ("s1", {"a": (1, {2})}, NOW)
