"""What was archived under one key is read, found, verified and continued under another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")


from redis_state import Settings
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.protocol import Archive
from redis_state.errors import PayloadUnreadable
from redis_state.models import TaskStatus
from redis_state.serialization.sealed import Sealed
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.runs.replaying import ReplayVerdict, replay_history
from redis_state.worker.tasks.histories import read_history
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.archived.archives import (
    archive_all,
    archive_and_expire,
    archived,
    archived_rows,
    expected,
    live_rows,
)

pytestmark = pytest.mark.worker

OLD, NEW = KEYS[0], KEYS[1]


async def work(ctx: TaskContext) -> Any:
    first = await ctx.step("first", lambda: ctx.input["n"] + 1)
    await ctx.progress(f"first is {first}")
    second = await ctx.step("second", lambda: first + 1)
    return {"of": [first, second]}


HANDLERS = {"work": work}
RESULT = {"of": [2, 3]}


async def of_the_old_key(settings: Settings, archive: Archive, *, text: str = "") -> None:
    """Have a task end and be archived under the old key, and leave Redis."""
    given = {"n": 1, "text": text}
    async with opened(settings, OLD) as store:
        async with pool(store, HANDLERS) as client:
            await client.submit(
                "work", given, session_id=SESSION, task_id="t", attributes={"user": "ann"}
            )
            assert await client.result(SESSION, "t", timeout_s=60) == RESULT
        await archive_and_expire(store, archive, "t")


async def test_what_is_archived_is_read_and_continued_after_a_rotation(
    archiving: Settings, archive: Archive
) -> None:
    await of_the_old_key(archiving, archive)
    async with opened(archiving, NEW, OLD) as store, pool(store, HANDLERS) as client:
        state = await store.archive.task(SESSION, "t")
        assert state is not None
        assert (state.status, state.result) == (TaskStatus.COMPLETE, RESULT)
        page = await store.archive.updates(SESSION)
        assert {"message": "first is 2"} in [each.content for each in page.values]
        (found,) = (await client.find(archived="only", attributes={"user": "ann"})).tasks
        assert (found.task_id, found.archived) == ("t", True)
        view = await client.inspect(SESSION, "t")
        assert view is not None
        assert (view.archived, view.state.result) == (True, RESULT)
        history = await read_history(store, SESSION, "t")
        assert history is not None
        assert (await replay_history(HANDLERS, history)).verdict is ReplayVerdict.FITS
        for again in (
            await client.rerun(SESSION, "t"),
            await client.fork(SESSION, "t", before="second"),
        ):
            assert await client.result(SESSION, again, timeout_s=60) == RESULT


async def test_what_is_archived_is_verified_and_replaced_after_a_rotation(
    archiving: Settings, archive: Archive
) -> None:
    async with opened(archiving, OLD) as store:
        async with pool(store, HANDLERS) as client:
            for task in ("same", "other"):
                await client.submit("work", {"n": 1}, session_id=SESSION, task_id=task)
                await client.result(SESSION, task, timeout_s=60)
        await backfill(store)
        assert (await archive_all(store, archive)).tasks == 2
    async with opened(archiving, NEW, OLD) as store:
        # A mark is removed, as for an archive from a backup: the copy is compared as it is stored.
        await backfill(store, again=True)
        report = await archive_all(store, archive)
        assert (report.tasks, report.updates, report.refused) == (2, 0, 0)
        before = await archived(archive)
        saved = await store.tasks.load(SESSION, "other")
        assert saved is not None
        assert await store.tasks.save(saved)
        await backfill(store)
        await archive_all(store, archive)
        after = await archived(archive)
        assert after == await expected(store, "same", "other")
        assert [name for name in after if after[name] != before[name]] == ["other"]
        assert await archived_rows(archive) == await live_rows(store)
    async with opened(archiving, NEW) as store:
        states = {each.task_id: each for each in await store.archive.tasks(SESSION)}
        assert states["other"].result == RESULT
        assert isinstance(states["same"].result, Sealed)


@pytest.mark.parametrize("text", ["", "large" * 1_000], ids=["small", "elsewhere"])
async def test_without_the_old_key_what_is_archived_is_found_and_passed_on(
    archiving: Settings, archive: Archive, tmp_path: Path, text: str
) -> None:
    options = {"claim_check_bytes": 2_000, "claim_check_url": tmp_path.as_uri()}
    stored = archiving.model_copy(update=options)
    await of_the_old_key(stored, archive, text=text)
    async with opened(stored, NEW) as store, TaskClient(store) as client:
        state = await store.archive.task(SESSION, "t")
        assert state is not None
        assert isinstance(state.result, Sealed)
        page = await store.archive.updates(SESSION)
        assert any(isinstance(each.content, Sealed) for each in page.values)
        assert [each.task_id for each in (await client.find(archived="only")).tasks] == ["t"]
        with pytest.raises(PayloadUnreadable):
            await read_history(store, SESSION, "t")
        made = [
            await client.rerun(SESSION, "t"),
            await client.fork(SESSION, "t", before="second"),
        ]
    if text:
        # Without the store of claims the new task would name the old one's object.
        async with opened(archiving, NEW) as store, TaskClient(store) as client:
            with pytest.raises(PayloadUnreadable):
                await client.rerun(SESSION, "t")
    async with opened(stored, NEW, OLD) as both, pool(both, HANDLERS) as client:
        for again in made:
            assert await client.result(SESSION, again, timeout_s=60) == RESULT
