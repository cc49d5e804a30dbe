from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, ok


async def take(scripts: Scripts, lease: str, owner: str, duration_ms: int = HOUR) -> Reply:
    return await scripts.acquire_lease(lease, owner=owner, duration_ms=duration_ms, keep_ms=HOUR)


async def test_one_owner_at_a_time_and_every_next_one_has_a_greater_epoch(
    scripts: Scripts, keys: Keys
) -> None:
    lease = keys.lease("s", "t")
    before = await clock_ms(scripts)
    first = int((await take(scripts, lease, "a", 2 * HOUR)).facts[0])
    assert before <= first <= await clock_ms(scripts)
    assert await take(scripts, lease, "a", 2 * HOUR) == ok(first)
    held = await take(scripts, lease, "b")
    assert held.word is ReplyCode.HELD
    assert HOUR < held.facts[0] <= 2 * HOUR
    assert 2 * HOUR < (await lives(scripts, lease))[0] <= 3 * HOUR
    await scripts.release_lease(lease, owner="a", epoch=first)
    second = int((await take(scripts, lease, "a", 1)).facts[0])
    assert second > first
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await take(scripts, lease, "a", 1) == ok(second)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    third = int((await take(scripts, lease, "\ud800")).facts[0])
    assert third > second
    assert (await fields(scripts, lease))["epoch"] == b"%d" % third


async def test_an_epoch_grows_also_if_the_clock_was_set_back(scripts: Scripts, keys: Keys) -> None:
    lease = keys.lease("s", "t")
    ahead = await clock_ms(scripts) + 9 * HOUR
    await ask(scripts, "HSET", lease, "owner", "", "claim", "a", "epoch", ahead, "expires", 0)
    assert await take(scripts, lease, "b") == ok(ahead + 1)
