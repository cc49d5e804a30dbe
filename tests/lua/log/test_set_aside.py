from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, fields, lives, ok


async def test_a_row_is_kept_once_and_no_more_than_so_many(scripts: Scripts, keys: Keys) -> None:
    key = keys.unreadable("s")

    async def keep(place: str, note: bytes) -> object:
        return await scripts.set_aside(key, place=place, note=note, most=2, ttl_ms=HOUR)

    assert await keep("a", b"1") == ok(1)
    assert await keep("a", b"2") == ok(0)
    assert await keep("b", b"3") == ok(1)
    assert await keep("c", b"4") == ok(0)
    assert await fields(scripts, key) == {"a": b"1", "b": b"3"}
    assert 0 < (await lives(scripts, key))[0] <= HOUR
