"""Redis, the archive and the store of claims: a session or a user leaves all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg

from redis_state import RedisStateStore, Settings
from redis_state.archive import ArchiveReader, open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.erased import scopes_in
from redis_state.archive.model import ArchiveBatch, ArchivedTask
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.archive.protocol import Archive
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.waiting import ArchiveList
from redis_state.erasure import Eraser, eraser, traces
from redis_state.errors import PayloadStoreUnavailable
from redis_state.memory.keys import MemoryKey
from redis_state.stores.hosts.oauth_tokens import OAuthTokenStore
from redis_state.worker import TaskContext
from tests.support.erasure import nothing_is_left
from tests.support.processes.pools import pool
from tests.support.tasks.archived.archives import all_due, archive_all

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


async def big(ctx: TaskContext) -> Any:
    return {"of": ctx.task.session_id, "big": "x" * 5_000, "step": await ctx.step("s", str, "y")}


async def run(store: RedisStateStore, **tasks: tuple[str, Any]) -> None:
    """Have tasks end: each name's session and user."""
    async with pool(store, {"big": big}) as client:
        for task, (session, user) in tasks.items():
            await client.submit(
                "big",
                "i" * 5_000,
                session_id=session,
                task_id=task,
                attributes=None if user is None else {"user": user},
            )
        for task, (session, _) in tasks.items():
            await client.wait(session, task, timeout_s=60)


@pytest.fixture
def claiming(archiving: Settings, tmp_path: Path) -> Settings:
    chosen = {"claim_check_bytes": 1_000, "claim_check_url": f"file://{tmp_path}"}
    return archiving.model_copy(update=chosen)


@pytest.fixture
async def large(claiming: Settings) -> AsyncIterator[RedisStateStore]:
    async with RedisStateStore(claiming) as opened:
        yield opened


def objects(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


async def test_redis_archive_and_claims_are_erased(
    large: RedisStateStore, archive: Archive, tmp_path: Path
) -> None:
    await run(large, mine=("mine", None), other=("other", None))
    await backfill(large)
    await archive_all(large, archive)
    assert objects(tmp_path) == 4
    counted = await large.forget("mine", dry_run=True)
    assert (counted.claims, counted.archive["tasks"]) == (2, 1)
    report = await large.forget("mine")
    assert (report.claims, report.archive) == (2, counted.archive)
    assert report.is_complete
    assert objects(tmp_path) == 2
    assert await archive.session("mine") is None
    await nothing_is_left(large, "mine")
    async with ArchiveReader(large, archive) as reader:
        kept = await reader.task("other", "other")
    assert kept is not None
    result: Any = kept.result
    assert result["big"] == "x" * 5_000


async def test_claims_are_erased_of_tasks_that_only_the_archive_has(
    large: RedisStateStore, archive: Archive, tmp_path: Path
) -> None:
    await run(large, mine=("mine", None))
    await backfill(large)
    await archive_all(large, archive)
    await large.clear_session("mine")
    report = await large.forget("mine")
    assert (report.claims, report.archive["tasks"]) == (2, 1)
    assert objects(tmp_path) == 0


async def test_claims_of_many_archived_tasks_are_read_in_pages(
    large: RedisStateStore,
    archive: Archive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not isinstance(archive, PostgresArchive):
        pytest.skip("the times of its tasks are changed by SQL")
    await run(large, **{f"t{n}": ("mine", None) for n in range(9)}, other=("other", None))
    await backfill(large)
    await archive_all(large, archive)
    await large.clear_session("mine")
    # Four have ended in one moment: more than a page.
    url = large.settings.archive_url
    assert url is not None
    async with await psycopg.AsyncConnection.connect(url.get_secret_value()) as link:
        await link.execute(
            "UPDATE redis_state.tasks SET ended_at = '2031-01-01 00:00+00', record = "
            "jsonb_set(record::jsonb - 'updated', '{updated_at}', '\"1924992000000000\"')::json "
            "WHERE namespace = %s AND task_id IN ('t1', 't3', 't5', 't7')",
            [large.settings.namespace],
        )
    pages = list[int]()
    tasks = PostgresArchive.tasks

    async def noting(self: PostgresArchive, query: ArchiveQuery) -> list[ArchivedTask]:
        found = await tasks(self, query)
        pages.append(len(found))
        return found

    monkeypatch.setattr(PostgresArchive, "tasks", noting)
    for reading in (eraser, traces):
        monkeypatch.setattr(reading, "_PAGE", 2)
    report = await large.forget("mine")
    assert (report.claims, report.archive["tasks"], objects(tmp_path)) == (18, 9, 2)
    assert max(pages) < 9
    assert len(pages) > 4


async def test_claims_are_erased_of_tasks_that_only_redis_has(
    claiming: Settings, tmp_path: Path
) -> None:
    alone = claiming.model_copy(update={"archive_url": None})
    async with RedisStateStore(alone) as store:
        await run(store, mine=("mine", None), other=("other", None))
        assert (await store.forget("mine")).claims == 2
    assert objects(tmp_path) == 2


async def test_a_store_of_claims_that_is_away_leaves_all_for_the_repetition(
    large: RedisStateStore, archive: Archive, claiming: Settings, tmp_path: Path
) -> None:
    class Away:
        async def put(self, key: str, data: bytes) -> None:
            raise OSError

        async def get(self, key: str) -> bytes | None:
            raise OSError

        async def delete(self, key: str) -> None:
            raise OSError

    await run(large, mine=("mine", None))
    changes = {"claim_check_url": None, "claim_check_store": Away()}
    async with RedisStateStore(claiming.model_copy(update=changes)) as broken:
        with pytest.raises(PayloadStoreUnavailable):
            await broken.forget("mine")
    assert len(await large.list_tasks("mine")) == 1
    report = await large.forget("mine")
    assert (report.claims, objects(tmp_path)) == (2, 0)


async def test_an_archiver_that_has_read_the_session_does_not_write_it(
    live: RedisStateStore, archiving: Settings, archive: Archive
) -> None:
    """Its next write comes after the erasure: it was held up between reading and writing."""
    await run(live, mine=("mine", None), other=("other", None))
    await backfill(live)
    await all_due(live)

    held = open_archive(archiving)
    write, fired = held.write, list[bool]()

    async def erasing(batch: ArchiveBatch, **options: Any) -> None:
        """Erase the session once what was read of it is to be written."""
        if "mine" in scopes_in(batch) and not fired:
            fired.append(True)
            await live.forget("mine")
        await write(batch, **options)

    held.write = erasing  # type: ignore[method-assign]
    await archive_all(live, held, Archiver(live, held))
    assert fired
    assert await archive.session("mine") is None
    assert await archive.session("other") is not None
    await held.aclose()
    await all_due(live)
    await Archiver(live, archive).run_once()
    await nothing_is_left(live, "mine")
    # A new life of the id is archived.
    await run(live, again=("mine", None))
    await backfill(live)
    await archive_all(live, archive)
    found = await archive.session("mine")
    assert found is not None
    assert found.tasks == 1


async def test_what_a_backup_brings_back_is_not_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    await run(live, mine=("mine", None))
    keys = live.tasks.keys("mine", "mine")
    commands, was = live.transport.sender, dict[str, Any]()
    for key in (keys.task, keys.journal, *live.base.keys.updates("mine")[:2]):
        was[key] = await commands.send("DUMP", key, repeatable=True)
    await live.forget("mine")
    for key, dumped in was.items():
        if dumped is not None:
            await commands.send("RESTORE", key, 10**7, dumped, repeatable=True)
    await ArchiveList(live).enlist("mine", "mine")
    await ArchiveList(live).watch_session("mine", within_ms=0)
    archiver = Archiver(live, archive)
    report = await archiver.run_once()
    assert (report.erased, report.tasks) == (1, 0)
    for key in (keys.task, keys.journal):
        assert await commands.send("PTTL", key, repeatable=True) <= 10**7
    assert await archive.session("mine") is None
    await all_due(live)
    await archiver.run_once()
    assert (await ArchiveList(live).backlog()).tasks == 0


async def test_a_user_is_erased_and_shared_sessions_are_named(
    live: RedisStateStore, archive: Archive
) -> None:
    await run(live, t1=("s1", "ann"), t2=("s2", "ann"), t3=("both", "ann"))
    other = "late" * 150
    await run(live, t4=("both", "bob"), t5=("s3", "bob"), t6=(other, "bob"))
    await backfill(live)
    await archive_all(live, archive)
    # The archive alone knows the second, and that the last was another user's.
    for session in ("s2", other):
        await live.clear_session(session)
    await run(live, t7=(other, "ann"))
    await live.save_memory_state(MemoryKey("t", "ann", "elsewhere").composite(), {"n": 1})
    await live.save_memory_state(MemoryKey("t", "bob", "elsewhere").composite(), {"n": 1})
    tokens = OAuthTokenStore(live.base)
    await tokens.store("ann", "provider", "secret", None)
    await tokens.store("bob", "provider", "secret", None)
    async with Eraser(live) as eraser:
        counted = await eraser.forget_user("ann", dry_run=True)
        assert counted.sessions == ["s1", "s2"]
        report = await eraser.forget_user("ann")
        assert report.redis["oauth tokens"] == report.redis["memories"] == 1
        assert counted.redis == report.redis
        assert "'both'" in report.kept["shared sessions"]
        assert other in report.kept["shared sessions"]
        assert [await archive.session(each) for each in ("s1", "s2")] == [None, None]
        assert len(await live.list_tasks("both")) == 2
        assert len(await live.list_tasks(other)) == 1
        kept = await archive.session(other)
        assert kept is not None
        assert kept.tasks == 1
        assert await tokens.get("bob", "provider") == "secret"
        assert (await eraser.forget_user("ann")).sessions == []
        report = await eraser.forget_user("ann", shared=True)
        assert report.sessions == ["both", other]
        assert await eraser.sessions_of("ann", shared=True) == []
        # With the one that a memory names, since that of the other user has gone.
        assert await eraser.sessions_of("bob") == ["elsewhere", "s3"]
    await nothing_is_left(live, "ann")
