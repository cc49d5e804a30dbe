"""Rows that were trimmed before they were archived: what is before and behind them is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.models import StateUpdate, UpdateType
from tests.support.commands import cli
from tests.support.http.http_gateway import over_http
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import archive_all, ended, let_expire, log_of
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

_LOST = 6


async def trim(live: RedisStateStore, task: str) -> None:
    """Append updates of a task, of which the last two are not trimmed."""
    log = log_of(live)
    small = type(log)(live.base.scripts, log.keys, replace(log.bounds, max_rows=2), named=True)
    for n in range(_LOST + 2):
        update = StateUpdate(
            session_id=SESSION, task_id=task, update_type=UpdateType.RESULT, content={"n": n}
        )
        await small.append([live.updates.write(update)], topic=task)


async def with_gaps(live: RedisStateStore, archive: Archive) -> tuple[str, int]:
    """Archive a task with updates before, between and behind two gaps; return how many are lost."""
    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    lost = 0
    for _ in range(2):
        await trim(live, task)
        await ArchiveList(live).enlist(SESSION, await ended(live, updates=0))
        lost += (await archive_all(live, archive)).missed
    assert lost >= _LOST
    await let_expire(live, task)
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)
    return task, lost


@pytest.mark.exhaustive
async def test_a_timeline_has_what_is_before_between_and_behind_gaps(
    live: RedisStateStore, archive: Archive
) -> None:
    task, lost = await with_gaps(live, archive)
    kept = await archive.rows(SESSION, after=None, count=1_000) or []
    async with over_http(live) as over:
        found, missed, after, at_end = list[bytes](), 0, None, False
        while not at_end:
            page = await over.http.timeline(SESSION, task, after=after)
            assert page is not None
            assert page.cursor != after or page.at_end
            found += [each.value.update_id.encode() for each in page.updates]
            missed, after, at_end = missed + (page.missed or 0), page.cursor, page.at_end
    assert found == [row.id for row in kept if row.topic == task]
    assert missed == lost


async def test_a_command_shows_what_is_kept_and_how_much_is_missing(
    live: RedisStateStore, archive: Archive, archive_url: str
) -> None:
    task, lost = await with_gaps(live, archive)
    kept = await archive.rows(SESSION, after=None, count=1_000) or []
    show, url = ("archive", "show", SESSION, task), archive_url
    shown = await cli(live.settings, *show, "--json", REDIS_STATE_ARCHIVE_URL=url)
    assert len(shown.document["updates"]) == sum(row.topic == task for row in kept)
    assert shown.document["missed"] == lost
    ran = await cli(live.settings, *show, REDIS_STATE_ARCHIVE_URL=url)
    assert f"{lost} updates of the session are missing" in ran.out
