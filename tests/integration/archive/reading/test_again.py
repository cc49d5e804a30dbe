"""Tasks that are made from archived ones, and histories of archived tasks."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.protocol import Archive
from redis_state.errors import PayloadLost, TaskUnknown
from redis_state.models import TaskStatus
from redis_state.testing.histories import assert_fits, read_history, replay_history
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.operate.copies import Copies, Source
from tests.support.commands import cli
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.archived.archives import archive_and_expire

pytestmark = pytest.mark.worker

LARGE = "x" * 200_000
_ran: list[Any] = []


def note(value: Any) -> Any:
    """Record that a step's work has run."""
    _ran.append(value)
    return value


async def work(ctx: TaskContext) -> Any:
    """Record small and large results, and two of one name."""
    given = ctx.input
    await ctx.step("small\ud800", note, "one")
    await ctx.step("large", note, LARGE)
    await ctx.step("large", note, "last")
    return {"got": given}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget what ran before."""
    _ran.clear()


async def left(client: TaskClient, live: RedisStateStore, archive: Archive, **options: Any) -> str:
    """Have a task end, be archived, and expire."""
    task = await client.submit("work", {"n": "\ud800"}, session_id=SESSION, **options)
    await client.wait(SESSION, task, timeout_s=60)
    await archive_and_expire(live, archive, task)
    assert await client.get(SESSION, task) is None
    _ran.clear()
    return task


@pytest.mark.parametrize("task_id", ["a", "\ud800 \0/€" * 100])
async def test_an_archived_task_is_run_again(
    live: RedisStateStore, archive: Archive, task_id: str
) -> None:
    async with pool(live, {"work": work}) as client:
        old = await left(client, live, archive, task_id=task_id, attributes={"tenant": "acme"})
        made = await client.rerun(SESSION, old)
        assert await client.result(SESSION, made, timeout_s=60) == {"got": {"n": "\ud800"}}
        assert _ran == ["one", LARGE, "last"]
        view = await client.inspect(SESSION, made)
        assert view is not None
        assert (dict(view.attributes), view.archived) == ({"tenant": "acme"}, False)
        assert (view.rerun_of and view.rerun_of.task_id) == old
        # The same id is the same task, also once more.
        assert await client.rerun(SESSION, old, new_task_id=made) == made
        with pytest.raises(TaskUnknown):
            await client.rerun(SESSION, "none")


async def test_a_fork_brings_the_journal_of_an_archived_task_along(
    live: RedisStateStore, archive: Archive
) -> None:
    async with pool(live, {"work": work}) as client:
        old = await left(client, live, archive)
        steps = await client.snapshots(SESSION, old)
        assert [step.step for step in steps] == ["small\ud800#1", "large#1", "large#2"]
        full = await client.snapshot(SESSION, old, 2)
        assert full is not None
        assert full.result == LARGE
        whole = await client.fork(SESSION, old)
        assert await client.result(SESSION, whole, timeout_s=60) == {"got": {"n": "\ud800"}}
        assert _ran == []
        part = await client.fork(SESSION, old, before="large#2")
        assert await client.result(SESSION, part, timeout_s=60) == {"got": {"n": "\ud800"}}
        assert _ran == ["last"]
        made = await client.snapshot(SESSION, part, 2)
        assert made is not None
        assert made.result == LARGE
        view = await client.inspect(SESSION, part)
        assert view is not None
        assert view.forked_from is not None
        assert (view.forked_from.task_id, view.forked_from.before) == (old, "step:large#2")


async def test_a_task_that_leaves_redis_while_it_is_forked_is_forked_from_the_archive(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = Copies.source, 0

    async def source(self: Copies, session_id: str, task_id: str) -> Source:
        nonlocal reads
        found = await read(self, session_id, task_id)
        reads += 1
        if reads == 1:
            assert found.archived is None
            await archive_and_expire(live, archive, task_id)
        return found

    monkeypatch.setattr(Copies, "source", source)
    async with pool(live, {"work": work}) as client:
        old = await client.submit("work", {"n": "\ud800"}, session_id=SESSION)
        await client.wait(SESSION, old, timeout_s=60)
        _ran.clear()
        made = await client.fork(SESSION, old)
        assert await client.result(SESSION, made, timeout_s=60) == {"got": {"n": "\ud800"}}
        assert (_ran, reads) == ([], 2)


@pytest.mark.exhaustive
async def test_the_history_of_an_archived_task_is_replayed(
    live: RedisStateStore, archive: Archive, archive_url: str, tmp_path: Path
) -> None:
    async with pool(live, {"work": work}) as client:
        task = await client.submit("work", 5, session_id=SESSION)
        await client.wait(SESSION, task, timeout_s=60)
        before = await read_history(live, SESSION, task)
        await archive_and_expire(live, archive, task)
    found = await read_history(live, SESSION, task)
    assert found is not None
    assert before is not None
    assert json.loads(found.document()) == json.loads(before.document())
    assert_fits(await replay_history({"work": work}, found))

    async def other(ctx: TaskContext) -> None:
        await ctx.step("other", note, 1)

    assert not (await replay_history({"work": other}, found)).fits
    path = tmp_path / "history.json"
    named: Any = {"REDIS_STATE_ARCHIVE_URL": archive_url}
    ran = await cli(live.settings, "history", SESSION, task, "-o", str(path), **named)
    assert ran.status == 0, ran.err
    assert json.loads(path.read_bytes()) == json.loads(before.document())
    code = f"{__name__}:HANDLERS"
    ran = await cli(live.settings, "replay", code, "-s", SESSION, "--task", task, "--json", **named)
    assert (ran.status, ran.document["fits"]) == (0, 1), ran.err


@pytest.mark.exhaustive
async def test_commands_find_show_and_copy_archived_tasks(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    async with pool(live, {"work": work}) as client:
        old = await left(client, live, archive)

    async def run(*arguments: str, url: str = archive_url) -> Any:
        return await cli(live.settings, *arguments, REDIS_STATE_ARCHIVE_URL=url)

    assert (await run("find", "--json")).document["tasks"] == []
    for option in ("--archived", "--archived-only"):
        (found,) = (await run("find", option, "--json")).document["tasks"]
        assert (found["task_id"], found["archived"]) == (old, True)
        assert "archived" in (await run("find", option)).out
    assert (await run("find", "--archived", "--count")).status == 2
    shown = (await run("show", SESSION, old, "--json")).document
    assert (shown["archived"], len(shown["steps"])) == (True, 3)
    assert shown["result"] == {"got": {"n": "\ud800"}}
    assert "archived" in (await run("show", SESSION, old)).out
    assert (await run("show", SESSION, "none")).status == 3
    made = await run("rerun", SESSION, old, "--json")
    assert made.document["rerun_of"] == old
    made = await run("fork", SESSION, old, "--before", "large#2", "--json")
    assert made.document["forked_from"] == old
    away = "postgresql://ann:secret@127.0.0.1:1/d"
    ran = await run("find", "--archived", "--json", url=away)
    assert ran.status == 0
    assert ran.document["incomplete"] is True
    assert "could not be read" in ran.err
    for arguments in (("find", "--archived-only"), ("show", SESSION, old), ("rerun", SESSION, old)):
        ran = await run(*arguments, url=away)
        assert (ran.status, "secret" in ran.err) == (5, False)
    assert (await cli(live.settings, "find", "--archived")).status == 2


@pytest.mark.exhaustive
async def test_a_large_payload_that_is_gone_is_named(
    archiving: Settings, archive: Archive, tmp_path: Path
) -> None:
    folder = tmp_path / "claims"
    claiming = archiving.model_copy(
        update={"claim_check_bytes": 10_000, "claim_check_url": folder.as_uri()}
    )

    async def large(ctx: TaskContext) -> str:
        await ctx.step("s", note, LARGE)
        return "done"

    async with RedisStateStore(claiming) as live, pool(live, {"work": large}) as client:
        tasks: list[str] = []
        for _ in range(2):
            task = await client.submit("work", LARGE, session_id=SESSION)
            await client.wait(SESSION, task, timeout_s=60)
            tasks.append(task)
        await archive_and_expire(live, archive, *tasks)
        made = await client.rerun(SESSION, tasks[0])
        assert await client.result(SESSION, made, timeout_s=60) == "done"
        # What the new one names is its own: the old objects may go.
        before = {path for path in folder.rglob("*") if path.is_file()}
        assert before
        await asyncio.to_thread(shutil.rmtree, folder)
        folder.mkdir()
        (folder / live.settings.namespace).mkdir()
        for call in (client.rerun, client.fork):
            with pytest.raises(PayloadLost) as lost:
                await call(SESSION, tasks[1])
            assert lost.value.field == "input"
        with pytest.raises(PayloadLost):
            await read_history(live, SESSION, tasks[1])
        with pytest.raises(PayloadLost):
            await client.snapshot(SESSION, tasks[1], 1)
        view = await client.inspect(SESSION, tasks[1])
        assert view is not None
        assert (view.state.result, view.archived) == ("done", True)
        assert view.state.status is TaskStatus.COMPLETE


HANDLERS = {"work": work}
