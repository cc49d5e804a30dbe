"""The rows of one task of a session are those that the session has of it, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from redis_state import CursorGap, RedisStateStore, Settings
from redis_state.models import StateUpdate
from tests.support.samples import changed, update
from tests.support.servers.changes.rollback import Kept, Rollback
from tests.support.servers.faults import Proxy, certificate, short_directory, tls_server_context
from tests.support.timing import LONG_S

_CALLERS, _EACH = 40, 60


def _name(number: int) -> str:
    odd = ["", "1", "t 1", "0 0 1", "{t}*:\x00\n", "\ud800", "\u00e9" * 300][number % 7]
    return odd * (1 + number // 7) if odd else " " * (number // 7)


async def _of_task(store: RedisStateStore, task: str | None, after: str | None = None) -> list[str]:
    """Read the ids of a task's updates in pages, of all tasks for None."""
    found: list[str] = []
    while True:
        page = await store.read_updates("s", after=after, limit=7, task_id=task)
        found += [entry.value.update_id for entry in page.entries]
        after = page.cursor
        if page.at_end:
            return found


async def _agree(store: RedisStateStore, tasks: set[str]) -> dict[str, list[str]]:
    """Check that the rows of each task are those of it among all; return their ids."""
    rows: list[StateUpdate] = await store.list_updates("s", limit=10_000)
    found = {task: [row.update_id for row in rows if row.task_id == task] for task in tasks}
    for task, ids in found.items():
        assert await _of_task(store, task) == ids
        newest = await store.list_updates("s", task_id=task, limit=9)
        assert [row.update_id for row in newest] == ids[-9:]
    return found


async def test_rows_of_40_tasks_are_whole_although_links_over_tls_die_without_a_word(
    settings: Settings, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    url = settings.url.get_secret_value()
    async with Proxy(url, tls=tls_server_context(cert, key)) as proxy:
        far = SecretStr(f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}")
        async with (
            changed(settings, url=far, call_timeout_s=8.0, max_updates_per_session=0) as store,
            RedisStateStore(settings) as near,
        ):
            assert await store.load_memory_state("first") is None

            half_way, go_on = asyncio.Barrier(_CALLERS + 1), asyncio.Event()

            async def write(number: int) -> None:
                for n in range(_EACH):
                    if n == _EACH // 2:
                        await half_way.wait()
                        await go_on.wait()
                    row = update(f"{number}-{n}", n, session_id="s", task_id=_name(number))
                    await store.save_update(row)

            callers = [asyncio.create_task(write(number)) for number in range(_CALLERS)]
            await half_way.wait()
            assert proxy.half_open()
            go_on.set()
            await asyncio.gather(*callers)
            found = await _agree(near, {_name(number) for number in range(_CALLERS)})
    assert len(found) == _CALLERS
    for number in range(_CALLERS):
        assert found[_name(number)] == [f"{number}-{n}" for n in range(_EACH)]


@pytest.mark.server
@pytest.mark.parametrize("kept", ["rdb", "aof"])
async def test_rows_of_a_task_follow_a_history_that_goes_back(kept: Kept) -> None:
    tasks = [_name(number) for number in range(5)]
    with short_directory() as directory:
        server = Rollback(directory, kept=kept)
        await server.start()
        try:
            settings = Settings(
                url=SecretStr(server.url), call_timeout_s=LONG_S, max_updates_per_session=90
            )
            async with RedisStateStore(settings) as store:

                async def write(life: str, first: int, end: int) -> None:
                    for n in range(first, end):
                        task = tasks[n // 9 % 5] if n % 13 else tasks[4]
                        row = update(f"{life}{n}", n, session_id="s", task_id=task)
                        await store.save_update(row)

                await write("a", 0, 120)
                await server.mark()
                await write("lost", 120, 200)
                ends = {
                    task: (await store.read_updates("s", limit=1000, task_id=task)).cursor
                    for task in tasks
                }
                await server.go_back()
                await write("b", 120, 170)
                found = await _agree(store, set(tasks))
                assert not any(name.startswith("lost") for ids in found.values() for name in ids)
                for task, cursor in ends.items():
                    with pytest.raises(CursorGap) as gap:
                        await store.read_updates("s", after=cursor, task_id=task)
                    rest = await _of_task(store, task, gap.value.resume_after)
                    assert rest == [name for name in found[task] if name.startswith("b")]
                # So far that all rows of before are trimmed.
                await write("c", 170, 400)
                await _agree(store, set(tasks))
        finally:
            await server.stop()
