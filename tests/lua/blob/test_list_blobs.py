from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, ok


async def test_what_has_not_expired_is_named_however_many(scripts: Scripts, keys: Keys) -> None:
    blobs = keys.artifacts("p")
    assert await scripts.list_blobs(blobs) == ok([])
    now = await clock_ms(scripts)
    await ask(scripts, "ZADD", blobs.expiry, now, "gone", now + HOUR, "a", "+inf", "b")
    await ask(scripts, "PEXPIRE", blobs.expiry, HOUR)
    assert await scripts.list_blobs(blobs) == ok([b"a", b"b"])
    many = [part for number in range(9000) for part in ("+inf", f"n{number}")]
    await ask(scripts, "ZADD", blobs.expiry, *many)
    assert len((await scripts.list_blobs(blobs)).facts[0]) == 9002
