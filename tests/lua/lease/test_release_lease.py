from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, fields, lives, no, ok
from tests.support.scripts.tasks import epoch_of


async def test_a_released_lease_is_free_and_remembers_its_epoch(
    scripts: Scripts, keys: Keys
) -> None:
    lease = keys.lease("s", "t")
    assert await scripts.release_lease(lease, owner="a", epoch=1) == no(ReplyCode.LOST, 0)
    assert await lives(scripts, lease) == [-2]
    await scripts.acquire_lease(lease, owner="a", duration_ms=HOUR, keep_ms=HOUR)
    held = await epoch_of(scripts, lease)
    assert await scripts.release_lease(lease, owner="b", epoch=held) == no(ReplyCode.LOST, held)
    for _ in range(2):
        assert await scripts.release_lease(lease, owner="a", epoch=held) == ok(held)
    left = await fields(scripts, lease)
    assert (left["owner"], left["claim"], left["expires"]) == (b"", b"a", b"0")
    assert left["epoch"] == b"%d" % held
    assert HOUR < (await lives(scripts, lease))[0] <= 2 * HOUR
    await scripts.acquire_lease(lease, owner="b", duration_ms=HOUR, keep_ms=HOUR)
    later = await epoch_of(scripts, lease)
    assert await scripts.release_lease(lease, owner="a", epoch=held) == no(ReplyCode.LOST, later)
