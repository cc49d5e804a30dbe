from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, fields, lives, ok


async def test_a_chunk_is_put_once_and_an_upload_does_not_stay(
    scripts: Scripts, keys: Keys
) -> None:
    upload = keys.artifacts("p").upload("u")
    for _ in range(2):
        assert await scripts.stage_chunk(upload, number=0, data=b"\x00\xff", ttl_ms=HOUR) == ok(1)
    assert await scripts.stage_chunk(upload, number=1, data=b"", ttl_ms=2 * HOUR) == ok(2)
    assert await fields(scripts, upload) == {"0": b"\x00\xff", "1": b""}
    assert HOUR < (await lives(scripts, upload))[0] <= 2 * HOUR
