from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts, Word
from tests.looking import HOUR, fields, lives, no, ok


async def test_a_released_lease_is_free_and_remembers_its_epoch(
    scripts: Scripts, keys: Keys
) -> None:
    lease = keys.lease("s", "t")
    assert await scripts.release_lease(lease, owner="a", epoch=1) == no(Word.LOST, 0)
    assert await lives(scripts, lease) == [-2]
    await scripts.acquire_lease(lease, owner="a", duration_ms=HOUR, keep_ms=HOUR)
    assert await scripts.release_lease(lease, owner="b", epoch=1) == no(Word.LOST, 1)
    for _ in range(2):
        assert await scripts.release_lease(lease, owner="a", epoch=1) == ok(1)
    left = await fields(scripts, lease)
    assert (left["owner"], left["epoch"], left["expires"]) == (b"", b"1", b"0")
    assert HOUR < (await lives(scripts, lease))[0] <= 2 * HOUR
    await scripts.acquire_lease(lease, owner="b", duration_ms=HOUR, keep_ms=HOUR)
    assert await scripts.release_lease(lease, owner="a", epoch=1) == no(Word.LOST, 2)
