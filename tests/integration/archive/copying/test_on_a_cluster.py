"""On a cluster: sessions on all nodes are archived, held, let go of, and erased."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis.exceptions import RedisError

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from redis_state.archive.model import RecordKind
from redis_state.erasure import Eraser, release_held
from redis_state.models import TaskStatus, Trajectory
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.transport.cluster.slots import slot_of
from tests.support.erasure import nothing_is_left
from tests.support.samples import event, task, update
from tests.support.servers.sets.clusters import Cluster, running_cluster
from tests.support.tasks.archived.archived_records import archive_records
from tests.support.tasks.archived.archives import archive_all
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker
# No name is in that of another, nor in that of a trace: what is left of one is looked for.
SESSIONS = [f"session-{n}" for n in range(6)]
HELD = [f"waits-{n}" for n in range(6)]


@asynccontextmanager
async def started() -> AsyncGenerator[Cluster]:
    """Run a cluster, where this machine and its server can."""
    async with AsyncExitStack() as stack:
        try:
            cluster = await stack.enter_async_context(running_cluster())
        except (AssertionError, OSError, RedisError) as error:
            pytest.skip(f"a cluster cannot be started here: {type(error).__name__}")
        yield cluster


def trace_of(session: str) -> str:
    """Name the trace of a session."""
    return session.replace("session", "trace").replace("waits", "other")


async def save(store: RedisStateStore, session: str) -> None:
    """Have a host save a task to its end, with its updates, a trajectory and an event."""
    state = replace(task("t", session), status=TaskStatus.RUNNING)
    await store.save_task(state)
    for n in range(2):
        await store.save_update(update(f"u{n}", n, session_id=session, task_id="t"))
    await store.save_trajectory(trace_of(session), session, Trajectory("q"))
    await store.save_event(event(trace_id=trace_of(session)))
    await store.save_task(replace(state, status=TaskStatus.COMPLETE))


async def test_sessions_on_all_nodes_are_archived_released_and_erased(tmp_path: Path) -> None:
    async with started() as cluster:
        plain = Settings(url=SecretStr(cluster.url), namespace="t")
        settings = plain.model_copy(
            update={
                "archive_url": SecretStr(tmp_path.as_uri()),
                "archive_classes": frozenset({"trajectories", "events"}),
            }
        )
        archive = open_archive(settings)
        await archive.prepare()
        async with RedisStateStore(settings) as store, RedisStateStore(plain) as without:
            keys = [store.tasks.keys(each, "t").task for each in SESSIONS]
            owners = [await cluster.owner(slot_of(key)) for key in keys]
            assert len(set(owners)) == len(cluster.ports)
            for session in SESSIONS:
                await save(store, session)
            done = await archive_all(store, archive)
            assert (done.tasks, done.updates, done.missed) == (6, 12, 0)
            await archive_records(store, archive)
            for key, session in zip(keys, SESSIONS, strict=True):
                assert await send(store, "HEXISTS", key, "archived") == 1
                assert await send(store, "PTTL", key) < ARCHIVE_HOLD_MS // 2
                kept = await archive.session(session)
                assert kept is not None
                assert (kept.tasks, kept.updates, kept.records) == (
                    1,
                    2,
                    {RecordKind.TRAJECTORY: 1},
                )
                events = await archive.records(RecordKind.EVENT, trace_of(session))
                assert len(events) == 1

            # Others end, and the archive is taken away before they are copied.
            for session in HELD:
                await save(store, session)
            keys = [store.tasks.keys(each, "t").task for each in HELD]
            assert all([await send(store, "PTTL", key) > ARCHIVE_HOLD_MS // 2 for key in keys])
            report = await release_held(without, dry_run=False)
            assert (report.released["tasks"], report.failed) == (6, 0)
            assert all([await send(store, "PTTL", key) < ARCHIVE_HOLD_MS // 2 for key in keys])

            async with Eraser(store, archive) as eraser:
                for session in SESSIONS[:3]:
                    erasure = await eraser.forget(session)
                    assert (erasure.failed, erasure.is_complete) == ({}, True)
                    await nothing_is_left(store, session)
                    assert await archive.session(session) is None
            left = await archive.status()
            assert (left.tasks, left.updates) == (3, 6)
            assert [len(await store.list_tasks(each)) for each in SESSIONS] == [0, 0, 0, 1, 1, 1]
        await archive.aclose()
