"""The commands of the archive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg

from redis_state import RedisStateStore, Settings
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.archive.retaining import Retainer
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from tests.support.commands import Ran, cli
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archived_tasks import sample_task
from tests.support.tasks.archived.archives import archived, ended, expected

pytestmark = pytest.mark.worker


@pytest.mark.role("admin")
async def test_what_has_ended_is_archived_listed_and_shown_by_hand(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    async def run(*arguments: str) -> Ran:
        return await cli(settings, "archive", *arguments, REDIS_STATE_ARCHIVE_URL=archive_url)

    good, bad = await ended(live), await ended(live, TaskStatus.FAILED)
    assert (await run("tasks")).out.strip() == "no archived tasks"
    ran = await run("run", "--backfill", "--json")
    assert (ran.document["enlisted"], ran.document["tasks"]) == (2, 2)
    assert (await run("run")).status == 0
    await live.clear_session(SESSION)
    listed = (await run("tasks", "--session", SESSION, "--json")).document
    assert [(one["task_id"], one["status"]) for one in listed] == [
        (bad, "FAILED"),
        (good, "COMPLETE"),
    ]
    assert [good in (await run("tasks", "--status", "COMPLETE")).out] == [True]
    shown = (await run("show", SESSION, good, "--json")).document
    assert shown["result"] == {"of": good}
    assert [each["type"] for each in shown["updates"]].count("PROGRESS") == 3
    assert good in (await run("show", SESSION, good)).out
    assert (await run("show", SESSION, "none")).status == 3
    counted = (await run("status", "--json")).document
    assert (counted["tasks"], counted["sessions"]) == (2, 1)
    assert (await run("status")).status == 0


async def test_an_archive_that_is_away_or_not_set_has_its_status(settings: Settings) -> None:
    away = "postgresql://ann:secret@127.0.0.1:1/d"
    ran = await cli(settings, "archive", "status", REDIS_STATE_ARCHIVE_URL=away)
    assert (ran.status, "secret" in ran.err) == (5, False)
    assert (await cli(settings, "archive", "status")).status == 2


async def test_what_needs_no_archiving_does_not_end_a_run_early(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    waiting = ArchiveList(live)
    await asyncio.gather(*(waiting.enlist(SESSION, f"gone-{n}") for n in range(300)))
    task = await ended(live)
    await waiting.enlist(SESSION, task)
    ran = await cli(settings, "archive", "run", "--json", REDIS_STATE_ARCHIVE_URL=archive_url)
    assert ran.document["tasks"] == 1
    assert await archived(archive) == await expected(live, task)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
@pytest.mark.role("admin")
async def test_what_is_over_is_counted_and_removed_by_hand(
    live: RedisStateStore, archive: PostgresArchive, settings: Settings, postgres: OwnPostgres
) -> None:
    kept = '{"tasks": "P30D", "sessions": "P30D"}'

    async def run(*arguments: str, retention: str = kept) -> Ran:
        return await cli(
            settings,
            "archive",
            *arguments,
            REDIS_STATE_ARCHIVE_URL=postgres.url,
            REDIS_STATE_ARCHIVE_RETENTION=retention,
        )

    old, new = await ended(live), await ended(live)
    assert (await run("run", "--backfill")).status == 0
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute(
            "UPDATE redis_state.tasks SET ended_at = now() - interval '31 days' "
            "WHERE namespace = %s AND task_id = %s",
            [settings.namespace, old],
        )
    counted = (await run("retain", "--dry-run", "--json")).document
    assert (counted["rows"], counted["dry_run"]) == ({"tasks": 1, "sessions": 0}, True)
    assert set(await archived(archive)) == {old, new}
    assert "tasks" in (await run("retain")).out
    assert set(await archived(archive)) == {new}
    assert (await run("retain", retention="{}")).status == 2
    assert (await run("retain", retention='{"tasx": "P30D"}')).status == 2
    # Without an archive, of audit events alone.
    ran = await cli(
        settings,
        *("archive", "retain", "--json"),
        REDIS_STATE_DURABLE_EVENTS=postgres.url,
        REDIS_STATE_DURABLE_EVENTS_RETENTION="P30D",
    )
    assert ran.document["rows"] == {"durable_events": 0}


async def test_one_process_keeps_the_retention_at_a_time(
    archiving: Settings, archive: PostgresArchive
) -> None:
    kept = {"archive_retention": {"tasks": timedelta(days=30)}}
    async with RedisStateStore(archiving.model_copy(update=kept)) as store:
        rounds = await asyncio.gather(*(Retainer(store, archive).run_once() for _ in range(5)))
        assert [report.rows for report in rounds if report is not None] == [{"tasks": 0}]
        assert await Retainer(store, archive).run_once() is None


async def test_a_process_without_retention_keeps_none_of_another_back(
    archiving: Settings, archive: PostgresArchive
) -> None:
    kept = {"archive_retention": {"tasks": timedelta(days=30)}}
    async with RedisStateStore(archiving) as plain:
        assert await Retainer(plain, archive).run_once() is not None
        assert await Retainer(plain, archive).run_once() is None
    async with RedisStateStore(archiving.model_copy(update=kept)) as store:
        assert await Retainer(store, archive).run_once() is not None


async def test_tasks_are_listed_by_their_trace_and_the_time_of_their_end(
    archive: Archive, settings: Settings, archive_url: str
) -> None:
    async def ids(*arguments: str) -> list[str]:
        asked = ("archive", "tasks", *arguments, "--json")
        ran = await cli(settings, *asked, REDIS_STATE_ARCHIVE_URL=archive_url)
        return [each["task_id"] for each in ran.document]

    tasks = [
        replace(sample_task("s", "old", 1), trace_id="x"),
        replace(sample_task("s", "new", 1), trace_id="y", ended_at=datetime.now(UTC)),
    ]
    await archive.write(ArchiveBatch(tasks=tasks))
    old = tasks[0].ended_at.isoformat()
    assert await ids() == ["new", "old"]
    assert (await ids("--trace", "x"), await ids("--trace", "z")) == (["old"], [])
    assert (await ids("--since", "1h"), await ids("--until", "1h")) == (["new"], ["old"])
    assert (await ids("--since", old, "--until", "1h"), await ids("--until", old)) == (["old"], [])
    wrong = ("archive", "tasks", "--since", "yesterday")
    ran = await cli(settings, *wrong, REDIS_STATE_ARCHIVE_URL=archive_url)
    assert (ran.status, "--since" in ran.err) == (2, True)
