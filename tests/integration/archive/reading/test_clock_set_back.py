"""Updates of a server whose clock has gone back: copied and read, wherever their times are."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.copying.updates import CopiedUpdates, UpdateCopies
from redis_state.archive.model import ArchiveBatch, ArchivedRow, SessionRows
from redis_state.archive.protocol import Archive
from redis_state.errors import CursorGap
from redis_state.models import StateUpdate, UpdateType
from tests.support.processes.pools import SESSION
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.archived.archives import log_of, tell
from tests.support.tasks.crash_states import send

pytestmark = pytest.mark.worker

HOUR_MS = 3_600_000


def row(live: RedisStateStore, n: int, ms: int) -> ArchivedRow:
    """Make an update as the archive has it."""
    update = StateUpdate(
        session_id=SESSION, task_id="t", update_type=UpdateType.PROGRESS, content={"old": n}
    )
    row_id, data = live.updates.write(update)
    return ArchivedRow(n, ms, row_id, "t", data)


async def keep(archive: Archive, rows: list[ArchivedRow], after: ArchivedRow | None = None) -> None:
    place = None if after is None else (after.n, after.ms)
    batch = ArchiveBatch(sessions=[SessionRows(SESSION, place, rows)])
    await archive.write(batch)
    assert (await archive.verify(batch)).is_whole


async def copy(live: RedisStateStore, archive: Archive) -> CopiedUpdates:
    """Copy what follows the archive's last row, as an archiver does."""
    last = (await archive.last_rows([SESSION])).get(SESSION)
    return await UpdateCopies(live, archive).copy({SESSION: last})


async def kept(archive: Archive) -> list[ArchivedRow]:
    found = await archive.rows(SESSION, after=None, count=1_000, over_gaps=True)
    assert found is not None
    return found


async def live_rows(live: RedisStateStore) -> list[ArchivedRow]:
    return [ArchivedRow(*each) for each in await log_of(live).read_all()]


async def test_a_log_that_began_again_in_the_past_is_copied_whole_and_once(
    live: RedisStateStore, archive: Archive
) -> None:
    ahead_ms = await clock_ms(live.base.scripts) + HOUR_MS
    old = [row(live, n, ahead_ms + n) for n in range(1, 51)]
    await keep(archive, old)
    # Its server's clock is an hour behind since. There are several pages, and fewer rows.
    await tell(live, 40)
    copied = await copy(live, archive)
    assert (copied.rows[SESSION], copied.whole) == (40, {SESSION: 40})
    assert await kept(archive) == [*await live_rows(live), *old]
    # What it has is not copied again.
    copied = await copy(live, archive)
    assert (copied.rows[SESSION], copied.whole) == (0, {SESSION: 40})
    # By now it has more rows than the archive's last one has as its number.
    await tell(live, 20)
    assert (await copy(live, archive)).whole == {SESSION: 60}
    assert (await copy(live, archive)).rows[SESSION] == 0
    whole = await kept(archive)
    assert whole == [*await live_rows(live), *old]
    assert await archive.last_rows([SESSION]) == {SESSION: (50, ahead_ms + 50)}
    keys = live.updates.keys(SESSION)
    await send(live, "DEL", keys.rows, keys.ids)
    async with ArchiveReader(live, archive) as reader:
        found = [each.row async for each in reader.all_updates(SESSION)]
    assert found == [each.data for each in whole]


async def test_a_log_that_began_again_in_the_past_hides_nothing_once_the_clock_has_caught_up(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 5)
    begin_ms = (await live_rows(live))[-1].ms
    # Its rows are between the fifth and the sixth of the earlier log.
    times = [n - HOUR_MS if n <= 5 else 10 * n for n in range(1, 101)]
    old = [row(live, n, begin_ms + ms) for n, ms in enumerate(times, 1)]
    await keep(archive, old)
    assert (await copy(live, archive)).rows[SESSION] == 5
    await clock_passes(live.base.scripts, old[-1].ms)
    await tell(live, 3)
    assert (await copy(live, archive)).whole == {SESSION: 8}
    assert sorted(await kept(archive), key=_place) == sorted(
        [*await live_rows(live), *old], key=_place
    )
    await tell(live, 1)
    assert (await copy(live, archive)).rows[SESSION] == 1


async def test_a_log_that_began_again_while_the_clock_catches_up_is_copied(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    now_ms = await clock_ms(live.base.scripts)
    old = [row(live, n, now_ms - 100 + n) for n in range(1, 101)]
    await keep(archive, old)
    await clock_passes(live.base.scripts, now_ms)
    await tell(live, 2)
    assert (await copy(live, archive)).rows[SESSION] == 5
    assert sorted(await kept(archive), key=_place) == sorted(
        [*await live_rows(live), *old], key=_place
    )


async def test_rows_that_a_server_lost_and_gave_again_in_the_past_are_copied(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 3)
    await copy(live, archive)
    both = await live_rows(live)
    # It had two more, and is a replica that lacks them and has a clock behind.
    later = [row(live, n, both[-1].ms + HOUR_MS) for n in (4, 5)]
    await keep(archive, later, after=both[-1])
    assert (await copy(live, archive)).whole == {SESSION: 3}
    await tell(live, 1)
    assert (await copy(live, archive)).whole == {SESSION: 4}
    # What was acknowledged stays, and what is new is there.
    assert await kept(archive) == [*await live_rows(live), *later]


async def test_rows_of_a_log_before_are_not_lost_because_a_later_one_has_their_times(
    live: RedisStateStore, archive: Archive
) -> None:
    await tell(live, 2)
    second_ms = (await live_rows(live))[-1].ms
    old = [row(live, n, second_ms) for n in (8, 9)]
    await keep(archive, old)
    while (await live_rows(live))[-1].ms == second_ms:
        await tell(live, 1)
    rows = await live_rows(live)
    copied = await copy(live, archive)
    assert copied.whole == {SESSION: len(rows)}
    assert sorted(await kept(archive), key=_place) == sorted([*rows, *old], key=_place)


def _place(row: ArchivedRow) -> tuple[int, int]:
    return row.place


async def test_rows_of_two_logs_among_one_another_are_read_over_gaps_without_a_number(
    live: RedisStateStore, archive: Archive
) -> None:
    begin_ms = await clock_ms(live.base.scripts) - HOUR_MS
    first = [row(live, n, begin_ms + 10 * n) for n in (1, 2, 3)]
    await keep(archive, first)
    second = [row(live, n, begin_ms + 10 * n + 5) for n in (1, 2)]
    await keep(archive, second, after=first[-1])
    after: str | None = None
    found, missed = list[bytes](), list[int | None]()
    async with ArchiveReader(live, archive) as reader:
        while len(found) < len([*first, *second]):
            try:
                page = await reader.updates(SESSION, after=after, limit=3)
            except CursorGap as gap:
                missed.append(gap.missed)
                after = gap.resume_after
                continue
            found += [each.row for each in page.entries]
            after = page.cursor
    assert found == [each.data for each in sorted([*first, *second], key=_place)]
    assert missed == [None]
