"""Whom archived artifacts name, and what outlives the tasks that say whose it is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.archive.retention import outliving
from redis_state.erasure import Eraser
from redis_state.errors import ArchiveUnavailable
from redis_state.memory.keys import MemoryKey
from redis_state.models.artifacts import ArtifactScope
from redis_state.serialization import codec
from redis_state.testing import eventually
from redis_state.worker.archiving.loop import archive_regularly
from tests.support.erasure import nothing_is_left
from tests.support.tasks.archived.archived_tasks import sample_task

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]
_AT_US = 1_700_000_000_000_000


def reference(session: str, user: str | None, *, key: str = "a", **more: Any) -> ArchivedRecord:
    scope = {"user_id": user, "session_id": session}
    data = codec.encode({"id": key, "scope": scope, **more})
    return ArchivedRecord(RecordKind.ARTIFACT, session, key, _AT_US, _AT_US, data, version=1)


@pytest.mark.parametrize("user", ["ann", 'ü "\\x" \t', "\ud800"])
async def test_sessions_of_archived_artifacts_that_name_the_user_are_erased(
    live: RedisStateStore, archive: Archive, user: str
) -> None:
    long = "s" * 500
    records = [
        reference("mine", user),
        # Written otherwise, for the sake of another text in it.
        reference(long, user, filename="\ud801"),
        reference("both", user),
        reference("both", "bob", key="b"),
        reference("tasks-of-bob", user),
        # It has the name elsewhere.
        reference("other", "bob", filename=user),
        reference("none", None, source={"user_id": user}),
    ]
    tasks = [sample_task("mine", "t", 1), sample_task("tasks-of-bob", "t", 1, user="bob")]
    await archive.write(ArchiveBatch(tasks, [], records))
    async with Eraser(live) as eraser:
        assert await eraser.sessions_of(user) == ["mine", long]
        report = await eraser.forget_user(user)
    counts = {"tasks": 1, "updates": 0, "artifacts": 2}
    assert (report.sessions, report.archive) == (["mine", long], counts)
    for kept in ("both", "tasks-of-bob"):
        assert kept in report.kept["shared sessions"]
    for session in ("mine", long):
        assert await archive.session(session) is None
    for session in ("both", "tasks-of-bob", "other", "none"):
        assert await archive.session(session) is not None


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_repetition_finds_the_session_whose_archive_was_away(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = {"by-memory", "by-artifact"}
    await archive.write(ArchiveBatch([sample_task(each, "t", 1) for each in sessions]))
    await live.save_memory_state(MemoryKey("t", "ann", "by-memory").composite(), {"n": 1})
    scope = ArtifactScope(user_id="ann", session_id="by-artifact")
    await live.artifact_store.put_text("x", scope=scope)
    away = ArchiveUnavailable("forget", "it is away")
    async with Eraser(live, archive) as eraser:
        for _ in sessions:
            with monkeypatch.context() as there:
                there.setattr(archive, "forget", AsyncMock(side_effect=away))
                with pytest.raises(ArchiveUnavailable):
                    await eraser.forget_user("ann")
        report = await eraser.forget_user("ann")
    assert (set(report.sessions), report.archive["tasks"]) == (sessions, 2)
    for session in sessions:
        assert await archive.session(session) is None
        await nothing_is_left(live, session)


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_what_outlives_the_tasks_is_named_by_archivers_and_in_a_report(
    archiving: Settings, archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    days = {"tasks": timedelta(days=90), "trajectories": timedelta(days=91)}
    classes = frozenset({"trajectories"})
    named = archiving.model_copy(update={"archive_retention": days, "archive_classes": classes})
    assert outliving(named) == ["updates", "trajectories"]
    as_long = dict.fromkeys(("tasks", "updates", "trajectories"), timedelta(days=90))
    for keep in ({}, as_long, {"updates": timedelta(days=1)}):
        assert outliving(named.model_copy(update={"archive_retention": keep})) == []
    async with RedisStateStore(named) as store:
        async with Eraser(store, archive) as eraser:
            report = await eraser.forget_user("ann")
        assert "updates, trajectories for longer" in report.kept["what outlives its tasks"]
        running = asyncio.create_task(archive_regularly(store, archive))
        try:
            await eventually(
                lambda: "removes tasks before updates, trajectories" in caplog.text, "it is named"
            )
        finally:
            running.cancel()
            await asyncio.wait({running})
