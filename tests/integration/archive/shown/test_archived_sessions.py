"""A session that is only archived: its counts over HTTP, its tasks and updates in the console."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")
pytest.importorskip("typer", reason="needs the cli extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.archive.reading.reader import ArchiveReader
from redis_state.archive.waiting import ArchiveList
from redis_state.gateway import create_gateway
from redis_state.gateway.console.views import session as session_page
from redis_state.models import TaskStatus
from redis_state.transport.keys import WATCH_SHARDS
from tests.integration.archive.reading.test_gaps_shown import trim
from tests.support.browser.console import HERE, Browser, keys_for
from tests.support.http.gateway import code_of
from tests.support.http.http_gateway import over_http
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import archive_all, ended, let_expire, tell
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

PATH = f"/v1/sessions/{SESSION}"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway with its console, and the keys of those who ask it."""

    app: Any
    keys: dict[str, str]

    async def get(self, path: str, *, who: str = "ann") -> httpx.Response:
        """Ask over HTTP."""
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=HERE, headers=headers) as http:
            return await http.get(path)

    async def browser(self, who: str = "ann") -> Browser:
        """Log in to the console."""
        browser = Browser(self.app)
        await browser.log_in(self.keys[who])
        return browser


@asynccontextmanager
async def serving_gateway(store: RedisStateStore) -> AsyncGenerator[Gateway]:
    auth, keys = keys_for(ann="read:*", sam=f"read:session:{SESSION}", eve="read:session:other")
    app = create_gateway(store, auth=auth, console=True)
    try:
        yield Gateway(app, keys)
    finally:
        await app.aclose()


async def archived_alone(
    store: RedisStateStore, archive: Archive, *tasks: str, index_forgets: bool = True
) -> None:
    """Archive tasks; then Redis has nothing of their session, nor does its index know them.

    The index cleans itself of expired tasks when others are written.
    """
    for task in tasks:
        await ArchiveList(store).enlist(SESSION, task)
    await archive_all(store, archive)
    await let_expire(store, *await store.tasks.ids(SESSION))
    rows = store.updates.keys(SESSION)
    await send(store, "DEL", rows.rows, rows.ids)
    for shard in range(WATCH_SHARDS if index_forgets else 0):
        keys = store.base.keys.task_index(shard)
        await send(store, "DEL", keys.index, keys.about, keys.expiry)


async def test_a_session_that_is_only_archived_can_be_read_and_opened(
    live: RedisStateStore, archive: Archive
) -> None:
    tasks = await ended(live), await ended(live, TaskStatus.FAILED)
    async with serving_gateway(live) as gateway:
        was = (await gateway.get(PATH)).json()
        await archived_alone(live, archive, *tasks)
        for who in ("ann", "sam"):
            found = await gateway.get(PATH, who=who)
            assert (found.status_code, found.json()) == (200, was | {"archived": True})
            browser = await gateway.browser(who)
            page = await browser.get("/session", session=SESSION)
            assert (page.status, "archived" in page.text) == (200, True)
            for task in tasks:
                assert page.links(f"/task?session={SESSION}&task={task}")
            assert page.source.count("<span>PROGRESS</span>") == 6
            assert "<span>STATUS_CHANGE</span>" in page.source
            assert "dropped" not in page.text
            only = await browser.get("/session", session=SESSION, types="PROGRESS")
            assert "<span>STATUS_CHANGE</span>" not in only.source
        for path in ("", "/tree"):
            hidden = await gateway.get(f"{PATH}{path}", who="eve")
            none = await gateway.get(f"/v1/sessions/none{path}", who="eve")
            assert (hidden.status_code, hidden.content) == (404, none.content)
            assert (await gateway.get(f"/v1/sessions/none{path}")).status_code == 404
        eve, ann = await gateway.browser("eve"), await gateway.browser()
        assert (await eve.get("/session", session=SESSION)).status == 404
        assert (await ann.get("/session", session="none")).status == 404
    assert (was["archived"], was["counts"]["FAILED"]) == (False, 1)


async def test_a_session_whose_expired_tasks_the_index_still_lists_is_read_from_the_archive(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live)
    async with serving_gateway(live) as gateway:
        was = (await gateway.get(PATH)).json()
        await archived_alone(live, archive, task, index_forgets=False)
        found = await gateway.get(PATH)
        assert (found.status_code, found.json()) == (200, was | {"archived": True})
        page = await (await gateway.browser()).get("/session", session=SESSION)
        assert (page.status, page.source.count("<span>PROGRESS</span>")) == (200, 3)


async def test_updates_that_have_left_redis_are_shown_of_a_session_that_is_there(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live)
    await ArchiveList(live).enlist(SESSION, task)
    await archive_all(live, archive)
    rows = live.updates.keys(SESSION)
    await send(live, "DEL", rows.rows, rows.ids)
    await tell(live, 1)
    async with serving_gateway(live) as gateway:
        browser = await gateway.browser()
        page = await browser.get("/session", session=SESSION)
        assert page.source.count("<span>PROGRESS</span>") == 1
        (first,) = page.links("after=0")
        page = await browser.follow(first)
        shown = page.source.count("<span>PROGRESS</span>")
        while later := [each for each in page.links("after=") if "after=0" not in each]:
            page = await browser.follow(later[0])
            shown += page.source.count("<span>PROGRESS</span>")
        assert (page.status, shown, "dropped" in page.text) == (200, 4, False)
        assert "archived</span>" not in page.source


async def test_its_updates_are_paged_and_lost_ones_are_gaps(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_page, "_ROWS", 2)
    for task in (await ended(live, updates=0), await ended(live, updates=0)):
        await trim(live, task)
        await ArchiveList(live).enlist(SESSION, task)
        await archive_all(live, archive)
    await archived_alone(live, archive)
    kept = await archive.rows(SESSION, after=None, count=1_000, over_gaps=True) or []
    shown, dropped = list[str](), list[int]()
    async with serving_gateway(live) as gateway:
        browser = await gateway.browser()
        page = await browser.get("/session", session=SESSION)
        while True:
            assert page.status == 200
            shown += re.findall(r"(?s)<li><time.*?</li>", page.source)
            dropped += map(int, re.findall(r"(\d+) rows? w\w+ dropped", page.text))
            later = page.links("after=")
            if not later:
                break
            page = await browser.follow(later[0])
            assert page.links(f"/session?session={SESSION}")
        assert (await browser.get("/session", session=SESSION, after="x")).status == 400
    assert (len(shown), len(set(shown))) == (len(kept), len(kept))
    before = [0, *(row.n for row in kept)]
    assert dropped == [
        row.n - 1 - last for row, last in zip(kept, before, strict=False) if row.n - 1 > last
    ]
    # One is before all that is kept.
    assert (len(dropped) > 1, kept[0].n > 1) == (True, True)


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_an_archive_that_is_away_is_503_and_of_a_whole_session_it_is_not_read(
    live: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, calls = await ended(live), list[object]()
    url = SecretStr("postgresql://ann:secret@127.0.0.1:1/d")
    soon = ArchiveReader.soon

    async def counted(reader: ArchiveReader, call: Any) -> Any:
        calls.append(call)
        return await soon(reader, call)

    monkeypatch.setattr(ArchiveReader, "soon", counted)
    away = live.settings.model_copy(update={"archive_url": url})
    async with RedisStateStore(away) as store, serving_gateway(store) as gateway:
        found = await gateway.get(PATH)
        assert (found.status_code, found.json()["archived"], calls) == (200, False, [])
        browser = await gateway.browser()
        page = await browser.get("/session", session=SESSION)
        # The tree alone asks it, and does without.
        assert (page.status, task in page.text, len(calls)) == (200, True, 1)
        for path in ("", "/tree"):
            answer = await gateway.get(f"/v1/sessions/none{path}")
            assert (answer.status_code, code_of(answer)) == (503, "archive_unavailable")
            assert "secret" not in answer.text
        page = await browser.get("/session", session="none")
        assert (page.status, "archive cannot answer" in page.text) == (503, True)
        assert (await gateway.get("/v1/sessions/none", who="sam")).status_code == 404


async def test_both_clients_count_what_redis_has(live: RedisStateStore, archive: Archive) -> None:
    async with over_http(live, handlers=("echo",)) as over:
        await over.direct.submit("echo", 1, session_id=SESSION, task_id="t")
        await over.direct.wait(SESSION, "t", timeout_s=60)
        counts = [await client.count(session_id=SESSION) for client in (over.direct, over.http)]
        assert [sum(each.values()) for each in counts] == [1, 1]
        await archived_alone(live, archive, "t")
        counts = [await client.count(session_id=SESSION) for client in (over.direct, over.http)]
        assert [sum(each.values()) for each in counts] == [0, 0]


async def test_updates_that_retention_has_removed_are_a_gap(
    live: RedisStateStore, archive: Archive
) -> None:
    task = await ended(live)
    await archived_alone(live, archive, task)
    removed = await archive.retain({"updates": datetime.now(UTC) + timedelta(days=1)})
    async with serving_gateway(live) as gateway:
        page = await (await gateway.browser()).get("/session", session=SESSION)
        assert (page.status, task in page.text, "<time" in page.source) == (200, True, False)
        assert f"{removed.rows['updates']} rows were dropped" in page.text
