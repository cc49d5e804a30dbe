from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Reply, Scripts, Word
from tests.looking import HOUR, clock_ms, clock_passes, fields, lives, ok


async def take(scripts: Scripts, lease: str, owner: str, duration_ms: int = HOUR) -> Reply:
    return await scripts.acquire_lease(lease, owner=owner, duration_ms=duration_ms, keep_ms=HOUR)


async def test_one_owner_at_a_time_and_every_next_one_has_a_greater_epoch(
    scripts: Scripts, keys: Keys
) -> None:
    lease = keys.lease("s", "t")
    assert await take(scripts, lease, "a", 2 * HOUR) == ok(1)
    assert await take(scripts, lease, "a", 2 * HOUR) == ok(1)
    held = await take(scripts, lease, "b")
    assert held.word is Word.HELD
    assert HOUR < held.facts[0] <= 2 * HOUR
    assert 2 * HOUR < (await lives(scripts, lease))[0] <= 3 * HOUR
    await scripts.release_lease(lease, owner="a", epoch=1)
    assert await take(scripts, lease, "a", 1) == ok(2)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await take(scripts, lease, "a", 1) == ok(2)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await take(scripts, lease, "\ud800") == ok(3)
    assert (await fields(scripts, lease))["epoch"] == b"3"
