"""Records that an archiver cannot take, for now or at all: others go on, none is forgotten."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg

from redis_state import RedisStateStore, Settings
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.protocol import Archive
from redis_state.models import Trajectory
from redis_state.stores.archive_list import RecordList, record_entry
from tests.support.processes.pools import SESSION
from tests.support.servers.postgres import OwnPostgres
from tests.support.tasks.archived.archived_records import records_due
from tests.support.tasks.crash_states import send


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive trajectories."""
    return archiving.model_copy(update={"archive_classes": frozenset({"trajectories"})})


async def test_an_entry_of_a_newer_version_stays_for_it(
    live: RedisStateStore, archive: Archive
) -> None:
    listed, entry = RecordList(live.base), record_entry("of_tomorrow", SESSION, "k")

    async def nothing() -> None:
        """Save no record."""

    await listed.covering(entry, nothing)
    archiver = RecordArchiver(live, archive)
    for _ in range(3):
        await records_due(live)
        assert (await archiver.run_once()).unknown == 1
    assert await listed.watch.has(entry)
    assert (await listed.backlog()).records == 1


async def test_a_record_that_cannot_be_read_is_set_aside_and_others_are_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    for trace in ("good", "bad"):
        await live.save_trajectory(trace, SESSION, Trajectory("q"))
    key = live.base.keys.trajectory(SESSION, "bad")
    await send(live, "DEL", key)
    await send(live, "SET", key, "no hash", "PX", 60_000)
    archiver = RecordArchiver(live, archive)
    await records_due(live)
    report = await archiver.run_once()
    assert (report.copied, report.refused) == ({"trajectories": 1}, 1)
    # It is not looked at again at once.
    assert (await archiver.run_once()).refused == 0
    assert (await RecordList(live.base).backlog()).oldest_s > 0


@pytest.mark.parametrize("archive_url", ["postgres"], indirect=True)
async def test_an_archive_that_changes_what_it_gets_is_reported_and_nothing_is_let_go(
    live: RedisStateStore,
    archive: Archive,
    postgres: OwnPostgres,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await live.save_trajectory("t", SESSION, Trajectory("kept"))
    await archive.prepare()
    archiver = RecordArchiver(live, archive)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as beside:
        await beside.execute(
            "CREATE FUNCTION redis_state.alter_data() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.data := 'other'; RETURN NEW; END $$"
        )
        await beside.execute(
            "CREATE TRIGGER alter_data BEFORE INSERT OR UPDATE ON redis_state.records "
            "FOR EACH ROW EXECUTE FUNCTION redis_state.alter_data()"
        )
        await records_due(live)
        report = await archiver.run_once()
        await beside.execute("DROP FUNCTION redis_state.alter_data CASCADE")
    assert report.copied == {}
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"one of the trajectories of {SESSION!r} is not in the archive as it")
    await records_due(live)
    assert (await archiver.run_once()).copied == {"trajectories": 1}


async def test_a_record_that_is_saved_while_its_entry_is_removed_waits_since_then(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live.save_trajectory("t", SESSION, Trajectory("one"))
    archiver = RecordArchiver(live, archive)
    await records_due(live)
    assert (await archiver.run_once()).copied == {"trajectories": 1}
    await records_due(live)
    settle = archiver._settle

    async def raced(*given: object) -> None:
        await live.save_trajectory("t", SESSION, Trajectory("two"))
        await settle(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(archiver, "_settle", raced)
    await archiver.run_once()
    backlog = await RecordList(live.base).backlog()
    assert backlog.records == 1
    assert backlog.oldest_s > 0
