"""Sessions that never had a task: their updates are archived by who saves them."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import LeaseLost, NoConnection, OutcomeUnknown
from redis_state.models.session_context import ContextPatch, MergeStrategy
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import Fence
from redis_state.stores.archive_list import session_entry
from redis_state.testing import leaked_keys
from redis_state.worker.archiving.again import enlist_sessions
from tests.integration.archive.copying.test_unfinished import due_soon
from tests.support.processes.pools import SESSION
from tests.support.samples import update as make_update
from tests.support.tasks.archived.archives import all_due, archived_rows, live_rows, tell
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

MOST = 64


async def is_listed(store: RedisStateStore) -> bool:
    return await ArchiveList(store).sessions.has(session_entry(SESSION))


async def look(store: RedisStateStore, archive: Archive, *, times: int = 1) -> int:
    """Have an archiver look at all that is listed; return how many updates it copied."""
    archiver, updates = Archiver(store, archive), 0
    for _ in range(times):
        await all_due(store)
        updates += (await archiver.run_once()).updates
    return updates


async def patched(store: RedisStateStore) -> None:
    patch = ContextPatch(task_id="t")
    await store.contexts.apply_context_patch(SESSION, patch, strategy=MergeStrategy.HUMAN_GATED)


async def expire(store: RedisStateStore) -> None:
    keys = store.updates.keys(SESSION)
    await send(store, "DEL", keys.rows, keys.ids)


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_updates_are_archived_and_read_once_they_have_expired(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    assert await is_listed(live)
    assert await look(live, archive) == 3
    assert await archived_rows(archive) == await live_rows(live)
    # What comes later is found by the next look.
    await tell(live, 2)
    assert await look(live, archive) == 2
    whole = await live.list_updates(SESSION)
    await expire(live)
    page = await live.archive.updates(SESSION)
    assert page.values == whole
    # It leaves the list with its log, and comes back with the next one, of any process.
    await look(live, archive, times=2)
    assert not await is_listed(live)
    assert await leaked_keys(live.settings) == []
    async with RedisStateStore(live.settings) as other:
        await tell(other, 1)
        assert await is_listed(live)


async def test_a_save_that_fails_or_dies_leaves_an_entry_and_nothing_else(
    live: RedisStateStore, archive: Archive
) -> None:
    fence = Fence(live.tasks.keys(SESSION, "t").lease, 1, "x")
    with pytest.raises(LeaseLost):
        await live.updates.save(make_update("u", session_id=SESSION), fence=fence)
    assert await is_listed(live)
    assert await look(live, archive, times=2) == 0
    assert not await is_listed(live)
    # It is not known as listed.
    await tell(live, 1)
    assert await look(live, archive) == 1


@pytest.mark.role("any", why="an erasure reads the names of all keys")
async def test_a_session_that_is_erased_and_used_again_is_listed_again(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    await look(live, archive)
    report = await live.forget(SESSION)
    assert report.archive["updates"] == 3
    assert not await is_listed(live)
    assert await archive.session(SESSION) is None
    await tell(live, 2)
    assert await is_listed(live)
    assert await look(live, archive) == 2


async def test_a_session_that_is_cleared_stays_listed_for_what_comes(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    await live.clear_session(SESSION)
    assert await look(live, archive, times=2) == 0
    await tell(live, 2)
    assert await look(live, archive) == 2


async def test_many_updates_are_looked_at_soon(archiving: Settings, archive: Archive) -> None:
    small = archiving.model_copy(update={"max_updates_per_session": MOST})
    async with RedisStateStore(small) as store:
        await tell(store, MOST // 4 - 1)
        assert await due_soon(store) is False
        await tell(store, 1)
        assert await due_soon(store)
        assert await look(store, archive) == MOST // 4


async def test_many_patches_are_looked_at_soon(archiving: Settings, archive: Archive) -> None:
    small = archiving.model_copy(update={"max_updates_per_session": MOST})
    async with RedisStateStore(small) as store:
        for _ in range(MOST // 4 // 4 - 1):
            await patched(store)
        assert await due_soon(store) is False
        await patched(store)
        assert await due_soon(store)
        assert await look(store, archive) == MOST // 4 // 4


async def test_a_row_of_another_does_not_hide_that_updates_are_many(
    archiving: Settings, archive: Archive
) -> None:
    small = archiving.model_copy(update={"max_updates_per_session": MOST})
    async with RedisStateStore(small) as store:
        await tell(store, MOST // 4 - 1)
        await patched(store)
        assert await due_soon(store) is False
        await tell(store, 1)
        assert await due_soon(store)


async def test_a_log_that_began_again_is_listed_by_who_repeats_its_first_save(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(live, 1)
    await expire(live)
    await look(live, archive, times=2)
    assert not await is_listed(live)

    async def broken(*_: object, **__: object) -> None:
        raise NoConnection("127.0.0.1", "gone")

    first = make_update("again", session_id=SESSION)
    with monkeypatch.context() as broke:
        broke.setattr(WatchList, "bring_forward", broken)
        with pytest.raises(OutcomeUnknown):
            await live.save_update(first)
    assert not await is_listed(live)
    await live.save_update(first)
    assert await is_listed(live)


async def test_a_patch_of_a_context_lists_its_session(
    live: RedisStateStore, archive: Archive
) -> None:
    outcome = await live.contexts.apply_context_patch(
        SESSION, ContextPatch(task_id="t"), strategy=MergeStrategy.HUMAN_GATED
    )
    assert await look(live, archive) == 1
    await live.contexts.reject_pending_patch(SESSION, outcome.patch_id)
    assert await look(live, archive) > 0
    assert await archived_rows(archive) == await live_rows(live)


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_those_of_before_are_found_and_without_an_archive_nothing_is_listed(
    settings: Settings, archiving: Settings, archive: Archive
) -> None:
    async with RedisStateStore(settings) as store:
        await tell(store, 3)
        assert not await is_listed(store)
    async with RedisStateStore(archiving) as live:
        assert await enlist_sessions(live) == 1
        assert await look(live, archive) == 3
