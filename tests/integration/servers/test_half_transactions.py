"""A server whose append-only file ends within a transaction, as a kill in a write may leave it.

Redis takes away no more than the last command. The next transaction would carry out the rest at the
start after that. So an unclean start needs a rewrite (`docs/guides/servers.md`).
"""

from __future__ import annotations

import pytest

from redis_state import RedisStateStore
from redis_state.models import StateUpdate
from redis_state.testing import eventually
from tests.chaos.support.server import Server
from tests.support.samples import update
from tests.support.servers.faults import short_directory


@pytest.mark.slow
async def test_a_row_whose_transaction_was_cut_off_is_there_once_after_two_starts() -> None:
    with short_directory() as directory:
        server = Server(directory, "always")
        try:
            server.start()
            await eventually(server.answers, "it answers")
            first, second = (update(name) for name in ("first", "second"))
            await _append(server, first, second)
            server.kill()
            [log] = [*(directory / "appendonlydir").glob("*.incr.aof")]
            written = log.read_bytes()
            # In the middle of the last command before the transaction's end.
            log.write_bytes(written[: written.rindex(b"*1\r\n$4\r\nEXEC") - 4])
            server.start()
            await eventually(server.answers, "it answers again")
            await server.rewrite()
            assert await _ids(server) == ["first"]
            await _append(server, second)
            server.kill()
            server.start()
            await eventually(server.answers, "it answers once more")
            assert await _ids(server) == ["first", "second"]
        finally:
            server.kill()


async def _append(server: Server, *updates: StateUpdate) -> None:
    async with RedisStateStore.from_url(server.url) as store:
        for each in updates:
            await store.save_update(each)


async def _ids(server: Server) -> list[str]:
    async with RedisStateStore.from_url(server.url) as store:
        return [each.update_id for each in await store.list_updates("session")]
