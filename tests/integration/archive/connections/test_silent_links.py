"""An archive that says nothing holds nobody up for longer than it may; forged cursors are gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.archive import Archive
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.reading import breaker
from redis_state.errors import ArchiveUnavailable, CursorGap
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.processes.pools import SESSION
from tests.support.servers.faults import Proxy
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import archive_and_expire, ended
from tests.support.timing import LONG_S, Overdue

pytestmark = pytest.mark.worker


@pytest.fixture
def archive_url(postgres: OwnPostgres) -> str:
    """Give the URL of the archive."""
    return postgres.url


@pytest.fixture
async def link(unused_tcp_port: int) -> AsyncIterator[Proxy]:
    """Give a link to a PostgreSQL of its own, by TCP."""
    own = OwnPostgres()
    own.port = unused_tcp_port
    await asyncio.to_thread(own.start)
    try:
        async with Proxy(f"redis://127.0.0.1:{own.port}/0") as proxy:
            yield proxy
    finally:
        await asyncio.to_thread(own.close)


def url_of(link: Proxy) -> SecretStr:
    return SecretStr(f"postgresql://postgres@127.0.0.1:{link.port}/postgres")


async def test_a_page_of_both_does_not_wait_for_a_silent_archive(
    live: RedisStateStore, link: Proxy
) -> None:
    settings = live.settings.model_copy(update={"archive_url": url_of(link)})
    await ended(live)
    async with RedisStateStore(settings) as store, TaskClient(store) as client:
        await store.archive.archive.prepare()
        assert not (await client.find(archived="also")).incomplete
        link.silence()
        call: Any = asyncio.ensure_future(client.find(archived="also"))
        late = Overdue(call, 9.0)
        page = await call
        assert (len(page.tasks), page.incomplete, late.seen) == (1, True, False)
        assert link.swallowed
        link.silence(silent=False)


async def test_one_connection_that_says_nothing_closes_the_archive_for_nobody(
    live: RedisStateStore, link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "_PATIENCE_S", 2.0)
    monkeypatch.setattr(breaker, "_LEFT_ALONE_S", LONG_S)
    settings = live.settings.model_copy(update={"archive_url": url_of(link)})
    async with RedisStateStore(settings) as store, TaskClient(store) as client:
        await store.archive.archive.prepare()
        link.half_open()
        pages = await asyncio.gather(*(client.find(archived="also") for _ in range(20)))
        assert any(page.incomplete for page in pages)
        assert link.swallowed
        # The connection was given up with the call: the next one has another.
        assert not (await client.find(archived="also")).incomplete
        assert not (await client.find(archived="only")).tasks


async def test_an_archive_that_is_away_is_asked_by_one_caller_at_a_time(
    live: RedisStateStore, link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(breaker, "monotonic", lambda: now_s)
    settings = live.settings.model_copy(update={"archive_url": url_of(link)})
    async with RedisStateStore(settings) as store, TaskClient(store) as client:

        async def asked(callers: int) -> int:
            """Let callers look at the same time; return how often the link was tried."""
            before = link.refused
            finds = (client.find(archived="also") for _ in range(callers))
            assert all(page.incomplete for page in await asyncio.gather(*finds))
            return link.refused - before

        await store.archive.archive.prepare()
        link.refuse()
        link.cut()
        assert await asked(3) >= 1
        now_s += 0.001
        assert await asked(1) == 1, "one failure may be one connection's"
        assert await asked(20) == 0
        now_s += 4.9
        assert await asked(20) == 0
        now_s += 0.2
        assert await asked(20) == 1
        assert await asked(20) == 0
        link.refuse(refusing=False)
        link.hold()
        now_s += 5.1
        finds = [asyncio.ensure_future(client.find(archived="also")) for _ in range(20)]
        await eventually(
            lambda: sum(find.done() for find in finds) == 19, "the others do not wait for one"
        )
        link.hand_on()
        pages = await asyncio.gather(*finds)
        assert [page.incomplete for page in pages].count(False) == 1
        pages = await asyncio.gather(*(client.find(archived="also") for _ in range(20)))
        assert not any(page.incomplete for page in pages)


async def test_callers_of_a_silent_archive_all_have_their_deadline(link: Proxy) -> None:
    archive = PostgresArchive(url_of(link), namespace="n", timeout_s=2.0)
    await archive.prepare()
    link.silence()
    calls = [asyncio.ensure_future(archive.session("s")) for _ in range(5)]
    late = [Overdue(call, 8.0) for call in calls]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, ArchiveUnavailable)
        assert "no answer in 2 s" in str(outcome)
    assert not any(each.seen for each in late)
    assert link.swallowed
    await archive.aclose()


@pytest.mark.parametrize("cursor", ["5-1000000000000000", "5-9" + "9" * 17, "0-9" + "9" * 17])
async def test_a_forged_cursor_is_a_gap(
    live: RedisStateStore, archive: Archive, cursor: str
) -> None:
    await archive_and_expire(live, archive, await ended(live))
    with pytest.raises(CursorGap) as gap:
        await live.archive.updates(SESSION, after=cursor)
    assert (await live.archive.updates(SESSION, after=gap.value.resume_after)).entries
