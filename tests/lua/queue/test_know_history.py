"""What distinguishes the history of the queues from one that was lost."""

from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import ask


async def known(
    scripts: Scripts, keys: Keys, *, new: str = "i", picking: bool = False
) -> tuple[bytes, int]:
    history, lately = (
        await scripts.know_history(keys.queue_history(), id=new, picking=picking)
    ).facts
    return history, lately


async def test_a_history_stays_the_same_until_its_key_is_lost(scripts: Scripts, keys: Keys) -> None:
    first = await known(scripts, keys)
    assert first[0].count(b" ") == 3
    assert await known(scripts, keys, new="j") == first
    assert await ask(scripts, "UNLINK", keys.queue_history()) == 1
    other = await known(scripts, keys, new="j")
    assert other != first
    assert other[0].replace(b" j ", b" i ") == first[0]


async def test_arqs_own_runner_makes_it_another_history_for_a_day(
    scripts: Scripts, keys: Keys
) -> None:
    alone = await known(scripts, keys)
    beside = await known(scripts, keys, picking=True)
    assert (alone[1], beside[1]) == (0, 1)
    assert beside[0] != alone[0]
    assert await known(scripts, keys) == beside
    for hours, lately in ((-2, 1), (-23, 1), (-25, 0), (1, 1)):
        now_s, _ = await ask(scripts, "TIME")
        at_ms = int(now_s) * 1000 + hours * 3_600_000
        await ask(scripts, "HSET", keys.queue_history(), "picking", str(at_ms))
        assert (await known(scripts, keys))[1] == lately
