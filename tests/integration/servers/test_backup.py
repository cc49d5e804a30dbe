"""A snapshot is restored in the order of `docs/guides/backup.md`."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NoServer

from redis_state import RedisStateStore
from redis_state.testing import eventually
from tests.support.servers.faults import run_server, short_directory


@asynccontextmanager
async def serving(directory: Path, *, appendonly: str) -> AsyncGenerator[tuple[str, Any]]:
    with run_server(directory, "--appendonly", appendonly) as url:
        admin: Any = Redis(unix_socket_path=url.removeprefix("unix://"))

        async def answers() -> bool:
            try:
                return bool(await admin.ping())
            except NoServer:
                return False

        async with admin:
            await eventually(answers, "it answers")
            yield url, admin


async def until_done(admin: Any, *fields: str) -> None:
    async def is_done() -> bool:
        about = await admin.info("persistence")
        return not any(about[field] for field in fields)

    await eventually(is_done, "the file is written")


async def kept(url: str) -> list[str]:
    async with RedisStateStore.from_url(url) as store:
        names = ("before", "after")
        return [name for name in names if await store.load_memory_state(name) is not None]


async def test_a_snapshot_is_restored_in_the_order_of_the_guide() -> None:
    with short_directory() as first, short_directory() as second:
        async with serving(first, appendonly="yes") as (url, admin):
            async with RedisStateStore.from_url(url) as store:
                await store.save_memory_state("before", {"n": 1})
                await admin.bgsave()
                await until_done(admin, "rdb_bgsave_in_progress")
                await store.save_memory_state("after", {"n": 2})
            assert await kept(url) == ["before", "after"]
            backup = first / "backup.rdb"
            shutil.copy(first / "dump.rdb", backup)

        # What the guide warns of: the appendonly file counts, and there is none.
        shutil.copy(backup, second / "dump.rdb")
        async with serving(second, appendonly="yes") as (url, _):
            assert await kept(url) == []
        shutil.rmtree(second / "appendonlydir")

        shutil.copy(backup, second / "dump.rdb")
        async with serving(second, appendonly="no") as (url, admin):
            assert await kept(url) == ["before"]
            await admin.config_set("appendonly", "yes")
            await until_done(admin, "aof_rewrite_in_progress", "aof_rewrite_scheduled")
        async with serving(second, appendonly="yes") as (url, _):
            assert await kept(url) == ["before"]
