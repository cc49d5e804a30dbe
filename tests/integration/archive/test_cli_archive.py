"""The commands of the archive."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import TaskStatus
from tests.support.commands import Ran, cli
from tests.support.processes.pools import SESSION
from tests.support.tasks.archives import archived, ended, expected

pytestmark = pytest.mark.worker


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
