from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import BackendUnavailable, CursorGap, RedisStateStore, Settings
from redis_state.testing import eventually
from tests.support.samples import changed, own_server, update
from tests.support.servers.faults import Proxy, needs_one_server


class Watcher:
    """A reader of a session that notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.cursors: list[str] = []

    async def watch(self, store: RedisStateStore, **query: Any) -> None:
        async with aclosing(store.watch_updates("session", **query)) as entries:
            async for entry in entries:
                self.seen.append(entry.value.content)
                self.cursors.append(entry.cursor)

    async def until(self, count: int, *, timeout_s: float = 30.0) -> None:
        await eventually(
            lambda: len(self.seen) >= count, f"{count} rows are seen", timeout_s=timeout_s
        )


@asynccontextmanager
async def watching(store: RedisStateStore, **query: Any) -> AsyncGenerator[Watcher, None]:
    """Watch for the length of the block."""
    watcher = Watcher()
    task = asyncio.create_task(watcher.watch(store, **query))
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _save(store: RedisStateStore, numbers: range, **more: Any) -> None:
    await asyncio.gather(*(store.save_update(update(f"u{n}", n, **more)) for n in numbers))


async def test_a_watcher_gets_what_is_there_and_what_comes(store: RedisStateStore) -> None:
    await _save(store, range(600))
    async with watching(store) as watcher:
        await watcher.until(600)
        await _save(store, range(600, 1200))
        await watcher.until(1200)
        assert watcher.seen == list(range(1200))


async def test_a_watcher_goes_on_after_its_cursor(store: RedisStateStore) -> None:
    await _save(store, range(10))
    cursor = await store.update_cursor("session", "u6")
    async with watching(store, after=cursor) as watcher:
        await _save(store, range(10, 12))
        await watcher.until(5)
        assert watcher.seen == [7, 8, 9, 10, 11]


async def test_a_watcher_of_one_task_gets_its_updates_only(store: RedisStateStore) -> None:
    await _save(store, range(3), task_id="mine")
    async with watching(store, task_id="mine") as watcher:
        await watcher.until(3)
        await _save(store, range(3, 6), task_id="other")
        await _save(store, range(6, 9), task_id="mine")
        await watcher.until(6)
        assert watcher.seen == [0, 1, 2, 6, 7, 8]


async def test_many_watchers_of_one_store_each_get_every_row(store: RedisStateStore) -> None:
    async with watching(store) as one, watching(store) as two, watching(store) as three:
        await _save(store, range(300))
        for watcher in (one, two, three):
            await watcher.until(300)
            assert watcher.seen == list(range(300))


async def test_an_update_saved_twice_is_told_once(store: RedisStateStore) -> None:
    async with watching(store) as watcher:
        for _ in range(3):
            await store.save_update(update("same", "once"))
        await store.save_update(update("last", "last"))
        await watcher.until(2)
        assert watcher.seen == ["once", "last"]


async def test_a_watcher_goes_on_after_its_session_was_cleared(store: RedisStateStore) -> None:
    await _save(store, range(5))
    async with watching(store) as watcher:
        await watcher.until(5)
        await store.clear_session("session")
        await _save(store, range(5, 8))
        await watcher.until(8)
        assert watcher.seen == list(range(8))


async def test_a_watcher_whose_cursor_is_too_old_is_told_and_can_go_on(settings: Settings) -> None:
    async with changed(settings, max_updates_per_session=10) as store:
        await _save(store, range(50))
        with pytest.raises(CursorGap) as caught:
            await anext(store.watch_updates("session", after="1-5"))
        assert caught.value.reason == "trimmed"
        assert caught.value.missed == 39
        async with watching(store, after=caught.value.resume_after) as watcher:
            await watcher.until(10)
            assert watcher.seen == list(range(40, 50))


async def test_a_watcher_of_a_server_that_stays_away_gives_up(settings: Settings) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url), call_timeout_s=0.2) as store,
    ):
        proxy.refuse()
        with pytest.raises(BackendUnavailable):
            await anext(store.watch_updates("session", reconnect_timeout_s=0.3))


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_watcher_cut_20_times_during_10000_updates_sees_every_row_in_order(
    settings: Settings, store: RedisStateStore
) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url)) as remote,
        watching(remote) as watcher,
    ):
        for part in range(20):
            seen = len(watcher.seen)
            saving = asyncio.create_task(_save(store, range(part * 500, part * 500 + 500)))
            await watcher.until(seen + 1)
            await eventually(proxy.cut, "there is a connection to cut")
            await saving
        await watcher.until(10_000)
        assert proxy.cuts == 20
        assert watcher.seen == list(range(10_000))
        assert len(set(watcher.cursors)) == 10_000


@pytest.mark.chaos
async def test_a_watcher_goes_on_across_a_restart_of_the_server(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    server = own_server(directory)
    options = {"call_timeout_s": 10.0, "namespace": "restart"}
    try:
        async with (
            RedisStateStore.from_url(server.url, **options) as store,
            RedisStateStore.from_url(server.url, **options) as reader,
            watching(reader) as watcher,
        ):
            await _save(store, range(50))
            await watcher.until(20)
            for restart in (1, 2):
                await asyncio.to_thread(server.stop)
                saving = asyncio.create_task(_save(store, range(50 * restart, 50 * restart + 50)))
                server = await asyncio.to_thread(own_server, directory)
                await saving
                await watcher.until(50 * restart + 50)
            assert watcher.seen == list(range(150))
            kept = [each.content for each in await store.list_updates("session")]
            assert kept == list(range(150))
    finally:
        server.stop()


@pytest.mark.role("admin")
async def test_two_databases_of_one_server_do_not_hear_each_other(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    needs_one_server(url)
    joint = "&" if "?" in url else "?"
    base = url.rsplit("/", 1)[0] if url.startswith("redis") else url
    other_url = f"{base}/1" if url.startswith("redis") else f"{url}{joint}db=1"
    other = settings.model_copy(update={"url": SecretStr(other_url)})
    async with RedisStateStore(settings) as here, RedisStateStore(other) as there:
        await here.save_update(update("here-1"))
        async with aclosing(here.watch_updates("session")) as watching:
            assert (await anext(watching)).value.update_id == "here-1"
            await there.save_update(update("there-1"))
            await there.save_update(update("there-2"))
            await here.save_update(update("here-2"))
            async with asyncio.timeout(60):
                assert (await anext(watching)).value.update_id == "here-2"
        await there.delete_everything()
