"""The group of the archive's commands, and how they open it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import typer

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.identity import KnownArchive
from redis_state.cli.commands import app

archive: typer.Typer = typer.Typer(
    name="archive",
    help="What has ended, in the archive of REDIS_STATE_ARCHIVE_URL.",
    no_args_is_help=True,
)
app.add_typer(archive)


@asynccontextmanager
async def reading(
    url: str | None, *, changes: bool = False
) -> AsyncGenerator[tuple[RedisStateStore, ArchiveReader]]:
    """Open the archive, and make none. What changes it is refused if Redis knows another one."""
    async with RedisStateStore.from_url(url) as store, ArchiveReader(store) as reader:
        if changes:
            await KnownArchive(store, reader.archive).check()
        yield store, reader
