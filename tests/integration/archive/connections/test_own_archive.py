"""An archive of the host's own, as an object in the settings of a worker."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")
pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, open_archive
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.waiting import ArchiveList
from redis_state.models import UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.commands import cli
from tests.support.processes.pools import SESSION, pool
from tests.support.tasks.archived.archives import (
    all_due,
    archived,
    archived_rows,
    expected,
    live_rows,
)
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker


class HostArchive:
    """An archive that a host has made: it counts what it is given, before another one keeps it."""

    def __init__(self, kept: Archive) -> None:
        self._kept = kept
        self.written: list[str] = []
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    async def write(self, batch: ArchiveBatch) -> None:
        """Write a batch."""
        self.written += [each.task_id for each in batch.tasks]
        await self._kept.write(batch)

    async def aclose(self) -> None:
        """Disconnect."""
        self.closed = True
        await self._kept.aclose()


async def tell(ctx: TaskContext) -> object:
    """Return the input, once an update has it."""
    await ctx.emit(UpdateType.PROGRESS, {"of": ctx.input})
    return ctx.input


async def test_a_worker_archives_into_the_archive_of_its_host(
    settings: Settings, archive: Archive
) -> None:
    own = HostArchive(archive)
    given = settings.model_copy(update={"archive_store": own})
    async with RedisStateStore(given) as store:
        async with pool(store, {"tell": tell}) as client:
            task = await client.submit("tell", 1, session_id=SESSION)
            assert await client.result(SESSION, task, timeout_s=60) == 1
            key = store.tasks.keys(SESSION, task).task
            await ArchiveList(store).enlist(SESSION, task)

            async def is_marked() -> bool:
                await all_due(store)
                return bool(await send(store, "HEXISTS", key, "archived"))

            await eventually(is_marked, "the worker archives it")
        before = await store.tasks.load(SESSION, task)
        assert await archived(archive) == await expected(store, task)
        assert await archived_rows(archive) == await live_rows(store)
        assert set(own.written) == {task}
        await store.clear_session(SESSION)
        assert await store.archive.task(SESSION, task) == before is not None
    # Others of the process may use it: who has made it closes it.
    assert not own.closed


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_a_command_finds_the_archive_of_its_host_by_name(
    settings: Settings, archiving: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = HostArchive(open_archive(archiving))
    monkeypatch.setattr(f"{__name__}.OWN", own, raising=False)
    named: dict[str, Any] = {"REDIS_STATE_ARCHIVE_STORE": f"{__name__}:OWN"}
    assert (await cli(settings, "archive", "run", **named)).status == 0
    ran = await cli(settings, "archive", "status", "--json", **named)
    assert (ran.status, ran.document["id"]) == (0, await own.identify()), ran
    assert ran.document["known_id"] == ran.document["id"]
    ran = await cli(settings, "archive", "release", "--yes", **named)
    assert (ran.status, "archive_store is set here" in ran.err) == (4, True), ran
