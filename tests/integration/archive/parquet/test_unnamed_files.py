"""What a call left that died before its entry: no erasure finds it, and archivers delete it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("typer", reason="needs the cli extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.parquet.files.log import FileLog
from redis_state.archive.retaining import Retainer
from redis_state.errors import ArchiveUnavailable
from redis_state.testing import eventually
from redis_state.worker.archiving.loop import archive_regularly
from tests.support.commands import cli
from tests.support.tasks.archived.archived_tasks import sample_task

pytestmark = [pytest.mark.worker, pytest.mark.role("any", why="it erases")]


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("tasks/**/*.parquet"))


async def erased_with_a_rest(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ParquetArchive, Settings, set[Path]]:
    """Have a write end between its file and its entry, then erase the session."""
    archive = ParquetArchive(folder.as_uri(), namespace=settings.namespace)
    await archive.prepare()
    await archive.write(ArchiveBatch([sample_task("other", "t", 1)]))
    named = files(folder)

    def dies(*_: object) -> bool:
        raise ArchiveUnavailable("write", "the process died here")

    with monkeypatch.context() as there:
        there.setattr(FileLog, "commit", dies)
        with pytest.raises(ArchiveUnavailable, match="died here"):
            await archive.write(ArchiveBatch([sample_task("mine", "t", 1)]))
    (rest,) = files(folder) - named
    archiving = settings.model_copy(update={"archive_url": SecretStr(folder.as_uri())})
    async with RedisStateStore(archiving) as store:
        assert (await store.forget("mine")).is_complete
    # It may be of a call that still runs, for some minutes.
    assert rest in files(folder)
    await archive.retain({})
    assert rest in files(folder)
    old = time.time() - 3_600
    os.utime(rest, (old, old))
    return archive, archiving, named


async def test_archivers_without_retention_delete_it_once_an_hour(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, archiving, named = await erased_with_a_rest(settings, tmp_path, monkeypatch)
    async with RedisStateStore(archiving) as store:
        assert not store.settings.archive_retention
        running = asyncio.create_task(archive_regularly(store, archive))
        try:
            await eventually(lambda: files(tmp_path) == named, "it is deleted")
        finally:
            running.cancel()
            await asyncio.wait({running})
        # One of them, for an hour.
        assert await Retainer(store, archive).run_once() is None


async def test_a_run_by_hand_deletes_it_at_its_end(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, named = await erased_with_a_rest(settings, tmp_path, monkeypatch)
    monkeypatch.setenv("REDIS_STATE_ARCHIVE_URL", tmp_path.as_uri())
    assert (await cli(settings, "archive", "run")).status == 0
    assert files(tmp_path) == named
