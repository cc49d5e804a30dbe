"""Sessions and tasks of any ids, from a pool to the archive and back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.protocol import Archive
from redis_state.models import StateUpdate, UpdateType
from redis_state.worker import TaskContext
from tests.support.processes.pools import pool
from tests.support.tasks.archived.archives import archive_all

pytestmark = pytest.mark.worker

IDS = (
    "'; DROP TABLE redis_state.tasks; --",
    '"%s" %(session)s $1 {} \\',
    "nul\0nul",
    "\ud800 lone \udfff",
    "\U0001f600",
    "\\u0000",
    "\\~" + "0" * 64,
    "".join(map(chr, range(0x4E00, 0x4E00 + 3_000))),
    " ",
)


async def tell(ctx: TaskContext) -> object:
    await ctx.step("step " + str(ctx.input), str, ctx.input)
    await ctx.emit(UpdateType.PROGRESS, {"of": ctx.input, "big": 10**30, "small": 1e-300})
    return ctx.input


async def test_ids_of_any_text_are_archived_and_read_as_they_were(
    live: RedisStateStore, archive: Archive
) -> None:
    async with pool(live, {"tell": tell}) as client:
        for own in IDS:
            await client.submit(
                "tell", own, session_id=own, task_id=own, trace_id=own, attributes={"of": "a\0b"}
            )
        for own in IDS:
            await client.wait(own, own, timeout_s=60)
    before = {own: await live.tasks.load(own, own) for own in IDS}
    updates = {own: await live.list_updates(own) for own in IDS}
    assert await backfill(live, again=True) == len(IDS)
    await archive_all(live, archive)
    for own in IDS:
        await live.clear_session(own)
    async with ArchiveReader(live, archive) as reader:
        for own in IDS:
            assert await reader.task(own, own) == before[own] is not None
            assert [each async for each in _values(reader, own)] == updates[own]
            assert len(updates[own]) >= 2
            (found,) = await reader.find(session_id=own, trace_id=own, handler="tell")
            assert (found.session_id, found.task_id, found.trace_id) == (own, own, own)
            assert found.attributes == {"of": "a\0b"}
        for own in IDS:
            assert await archive.forget(own) is not None
        assert (await archive.status()).tasks == 0
        assert (await archive.status()).sessions == 0


async def _values(reader: ArchiveReader, own: str) -> AsyncIterator[StateUpdate]:
    async for entry in reader.all_updates(own, task_id=own):
        yield entry.value
