"""Many callers over TLS, with ids of any text, whose links die: each row is archived once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import BackendError
from redis_state.models import UpdateType
from redis_state.worker import TaskContext
from tests.support.processes.pools import pool
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archives import (
    all_due,
    archived,
    archived_rows,
    expected,
    live_rows,
)

pytestmark = pytest.mark.worker

CALLERS, ARCHIVERS, ROUNDS = 40, 3, 50


class Place(NamedTuple):
    """Where an archive is, and the link that leads there, if any does."""

    url: str
    link: Proxy | None


@pytest.fixture(params=["postgres", "parquet"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Give an archive of each kind in turn: over TLS, or in a folder."""
    if request.param == "parquet":
        yield Place((tmp_path / "archive").as_uri(), None)
        return
    own = OwnPostgres()
    try:
        cert = own.use_tls()
        await asyncio.to_thread(own.start)
        async with Proxy(f"redis://127.0.0.1:{own.port}/0") as link:
            checked = f"sslmode=verify-full&sslrootcert={cert}"
            yield Place(f"postgresql://postgres@127.0.0.1:{link.port}/postgres?{checked}", link)
    finally:
        await asyncio.to_thread(own.close)


def odd(number: int) -> str:
    """Return an id that nobody would choose. The keys of every second one have a digest of it."""
    return f"{number} {{}}*:%\u00e9\n\0'\"\\~$1\ud800{'x' * 300 * (number % 2)}"


class CuttingArchive:
    """Cuts links once, while it writes, and notes how many connections died by that."""

    def __init__(self, archive: Archive, links: Sequence[Proxy]) -> None:
        self._archive, self._links = archive, links
        self.cut: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def write(self, batch: ArchiveBatch) -> None:
        """Write a batch."""
        call = asyncio.ensure_future(self._archive.write(batch))
        if not self.cut:
            await asyncio.sleep(0)
            self.cut = [link.cut() for link in self._links]
        await call


async def archive_together(store: RedisStateStore, archivers: Sequence[Archiver]) -> None:
    """Have archivers work side by side until nothing waits. ``store`` has a link of its own."""
    for _ in range(ROUNDS):
        await all_due(store)
        rounds = (each.run_once() for each in archivers)
        for done in await asyncio.gather(*rounds, return_exceptions=True):
            # After any trouble an archiver begins another round.
            assert not isinstance(done, BaseException) or isinstance(done, BackendError), done
        if not (await ArchiveList(store).backlog()).tasks:
            return
    raise AssertionError(f"tasks still wait after {ROUNDS} rounds")


async def test_what_40_callers_leave_is_archived_once_though_links_die(
    settings: Settings, store: RedisStateStore, place: Place, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    cuts: dict[int, int] = {}
    async with AsyncExitStack() as stack:
        proxy = Proxy(settings.url.get_secret_value(), tls=tls_server_context(cert, key))
        link = await stack.enter_async_context(proxy)
        url = link.url.replace("redis://", "rediss://") + f"?ssl_ca_certs={cert}"
        changed: dict[str, Any] = {"url": SecretStr(url), "archive_url": SecretStr(place.url)}
        changed |= {"archive_share": 0.0, "call_timeout_s": 20.0}
        given = settings.model_copy(update=changed)
        live = await stack.enter_async_context(RedisStateStore(given))

        async def tell(ctx: TaskContext) -> object:
            """Record a step, publish its result, and cut the link of all in some tasks."""
            kept = await ctx.step("keep", lambda: ctx.input)
            number = int(ctx.input["number"])
            if number % 20 == 3 and number not in cuts:
                cuts[number] = link.cut()
            await ctx.emit(UpdateType.PROGRESS, kept)
            return kept

        async with pool(live, {"tell": tell}, max_tasks=20) as client:

            async def call(number: int) -> None:
                own, value = odd(number), {"number": number, "text": "x" * 2_000}
                await client.submit("tell", value, session_id=own, task_id=own, trace_id=own)
                assert await client.result(own, own, timeout_s=60) == value

            await asyncio.gather(*map(call, range(CALLERS)))
        assert any(cuts.values()), cuts
        assert await backfill(store) == CALLERS
        links = [each for each in (link, place.link) if each is not None]
        opened = [open_archive(given) for _ in range(ARCHIVERS)]
        for each in opened:
            stack.push_async_callback(each.aclose)
        cutting = [CuttingArchive(each, links) for each in opened]
        archivers = [Archiver(live, cast("Archive", each), limit=1) for each in cutting]
        await archive_together(store, archivers)
        died = [each.cut for each in cutting if each.cut]
        assert len(died) > 1
        assert any(all(each) for each in died), died
        reading, rows = opened[0], 0
        for own in map(odd, range(CALLERS)):
            assert await archived(reading, own) == await expected(store, own, session=own)
            assert await archived_rows(reading, own) == await live_rows(store, own)
            rows += len(await store.list_updates(own))
        status = await reading.status()
        assert (status.tasks, status.updates) == (CALLERS, rows)
