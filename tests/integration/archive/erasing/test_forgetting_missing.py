"""A session is erased although a file of the archive is gone that may have something of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.model import RecordKind
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.queries import ArchiveQuery
from redis_state.erasure import Eraser
from redis_state.errors import ArchiveFileMissing
from redis_state.models import Trajectory
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archived_records import archive_records, archived_events, event_of
from tests.support.tasks.archived.archives import archive_all, ended

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "dropped"])
@pytest.mark.parametrize("kind", ["tasks", "updates", "records"])
async def test_what_is_there_is_erased_and_the_report_names_the_file(
    settings: Settings, tmp_path: Path, kind: str, *, restored: bool
) -> None:
    url, classes = SecretStr(tmp_path.as_uri()), frozenset({"trajectories", "events"})
    chosen = settings.model_copy(update={"archive_url": url, "archive_classes": classes})
    archive = ParquetArchive(tmp_path.as_uri(), namespace=settings.namespace)
    async with RedisStateStore(chosen) as store, Eraser(store, archive) as eraser:
        await ended(store)
        await backfill(store)
        await archive_all(store, archive)
        await store.save_trajectory("trace", SESSION, Trajectory("q"))
        await store.save_event(event_of("trace", "a"))
        await archive_records(store, archive)
        await archive.compact()
        (file,) = [
            each
            for each in archive._calls.log.files().of(kind)
            if await _has(archive, each.name, RecordKind.TRAJECTORY if kind == "records" else None)
        ]
        at = tmp_path / f"namespace={settings.namespace}" / file.name
        was = at.read_bytes()
        at.unlink()
        # A reader of it still gets an error.
        with pytest.raises(ArchiveFileMissing):
            await archive.session(SESSION)
        counted = await eraser.forget(SESSION, dry_run=True)
        report = await eraser.forget(SESSION)
        for each in (counted, report):
            assert not each.is_complete
            assert file.name in each.failed["archive"]
        assert counted.archive == report.archive
        assert await store.list_tasks(SESSION) == []
        assert await store.trajectories.load("trace", SESSION) is None
        assert await store.load_history("trace") == []
        if restored:
            at.write_bytes(was)
        else:
            assert await archive.drop_missing() == [file.name]
        assert (await eraser.forget(SESSION)).is_complete
        assert await archive.session(SESSION) is None
        assert await archive.tasks(ArchiveQuery(session_id=SESSION)) == []
        assert await archive.rows(SESSION, after=None, count=9) == []
        assert await archive.records(RecordKind.TRAJECTORY, SESSION) == []
        assert await archived_events(archive, "trace") == []


async def _has(archive: ParquetArchive, name: str, kind: RecordKind | None) -> bool:
    """Return whether a file is one of tasks or updates, or has records of a kind."""
    classes = archive._calls.log.files().by_name[name].classes or {}
    return kind is None or kind.value in classes
