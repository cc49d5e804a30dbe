from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, clock_ms, clock_passes, lives, no, ok
from tests.support.scripts.tasks import epoch_of


async def test_a_lease_is_prolonged_until_it_is_taken_over(scripts: Scripts, keys: Keys) -> None:
    lease = keys.lease("s", "t")

    async def take(owner: str) -> Reply:
        return await scripts.acquire_lease(lease, owner=owner, duration_ms=1, keep_ms=HOUR)

    async def renew(owner: str, epoch: int, duration_ms: int = HOUR) -> Reply:
        return await scripts.renew_lease(
            lease, owner=owner, epoch=epoch, duration_ms=duration_ms, keep_ms=HOUR
        )

    assert await renew("a", 1) == no(ReplyCode.LOST, 0, 1)
    assert await lives(scripts, lease) == [-2]
    await take("a")
    held = await epoch_of(scripts, lease)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    for _ in range(2):
        assert await renew("a", held) == ok(held)
    assert HOUR < (await lives(scripts, lease))[0] <= 2 * HOUR
    assert (await take("b")).word is ReplyCode.HELD
    assert await renew("b", held) == no(ReplyCode.LOST, held, 1)
    assert await renew("a", held, 1) == ok(held)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    later = int((await take("b")).facts[0])
    assert await renew("a", held) == no(ReplyCode.LOST, later, 1)
    await scripts.release_lease(lease, owner="b", epoch=later)
    # Given back by its own claim, and nobody has it since.
    assert await renew("b", later) == no(ReplyCode.LOST, later, 0)
