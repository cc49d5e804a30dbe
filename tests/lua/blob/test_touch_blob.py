from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, ok


async def test_a_used_blob_is_the_last_even_when_the_clock_went_back(
    scripts: Scripts, keys: Keys
) -> None:
    blobs = keys.artifacts("p")
    await ask(scripts, "ZADD", blobs.use, 1, "a", 2, "b", 4_000_000_000_000_000, "c")
    await ask(scripts, "PEXPIRE", blobs.use, HOUR)
    for _ in range(2):
        assert await scripts.touch_blob(blobs, blob_id="a") == ok(1)
        assert await ask(scripts, "ZRANGE", blobs.use, 0, -1) == [b"b", b"c", b"a"]


async def test_a_blob_that_is_gone_does_not_come_back(scripts: Scripts, keys: Keys) -> None:
    blobs = keys.artifacts("p")
    assert await scripts.touch_blob(blobs, blob_id="a") == ok(0)
    assert await ask(scripts, "EXISTS", blobs.use) == 0
