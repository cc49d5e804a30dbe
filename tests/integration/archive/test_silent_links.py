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
from redis_state.errors import ArchiveUnavailable, CursorGap
from redis_state.worker import TaskClient
from tests.support.processes.pools import SESSION
from tests.support.servers.faults import Proxy
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archives import archive_and_expire, ended
from tests.support.timing import Overdue

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


async def test_callers_of_a_silent_archive_all_have_their_deadline(link: Proxy) -> None:
    archive = PostgresArchive(url_of(link), namespace="n", timeout_s=2.0)
    await archive.prepare()
    link.silence()
    calls = [asyncio.ensure_future(archive.status()) for _ in range(5)]
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
