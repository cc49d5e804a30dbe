from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, ok


async def _gone(scripts: Scripts, key: str) -> bool:
    return bool(await ask(scripts, "EXISTS", key) == 0)


async def test_keys_age_and_held_leases_do_not(scripts: Scripts, keys: Keys) -> None:
    shift = keys.test_clock()
    short, long, held, left, free = others = [f"{shift}:{n}" for n in range(5)]
    now = await clock_ms(scripts)
    for key, life in ((short, HOUR), (long, 3 * HOUR)):
        await ask(scripts, "SET", key, "1", "PX", life)
    leases = ((held, "me", now + HOUR), (left, "dead", now - 1), (free, "", now + HOUR))
    for key, owner, expires in leases:
        await ask(
            scripts, "HSET", key, "owner", owner, "expires", expires, "length", HOUR
        )  # fmt: skip
        await ask(scripts, "PEXPIRE", key, 3 * HOUR)
    until = now + 2 * HOUR
    assert await scripts.skip_time(shift, others=others, until_ms=until) == ok(until)
    by = int(await ask(scripts, "GET", shift))
    assert 0 <= 2 * HOUR - by < HOUR
    await ask(scripts, "PEXPIRE", shift, HOUR)
    assert await ask(scripts, "EXISTS", shift) == 1
    # One millisecond is left to it.
    await eventually(lambda: _gone(scripts, short), "the key has expired")
    aged = [await ask(scripts, "PTTL", key) for key in (long, left, free)]
    assert all(0 < life <= 3 * HOUR - by for life in aged)
    assert await ask(scripts, "PTTL", held) > 2 * HOUR
    ends = [int(await ask(scripts, "HGET", key, "expires")) for key in (held, left, free)]
    assert ends == [now + HOUR + by, now - 1, now + HOUR]


async def test_a_time_that_is_reached_is_not_reached_again(scripts: Scripts, keys: Keys) -> None:
    shift = keys.test_clock()
    now = await clock_ms(scripts)
    # The store of this test has the server's own clock, which nothing moves.
    reply = await scripts.skip_time(shift, others=[], until_ms=now - 1)
    assert reply.facts[0] >= now
    assert await ask(scripts, "EXISTS", shift) == 0


async def test_other_keys_may_be_gone_or_of_any_type(scripts: Scripts, keys: Keys) -> None:
    shift = keys.test_clock()
    others = [f"{shift}:{n}" for n in range(4)]
    for command in (
        ("RPUSH", others[0], "1"),
        ("XADD", others[1], "1-1", "a", "b"),
        ("ZADD", others[2], "1", "m"),
    ):
        await ask(scripts, *command)
        await ask(scripts, "PEXPIRE", command[1], 3 * HOUR)
    now = await clock_ms(scripts)
    await scripts.skip_time(shift, others=others, until_ms=now + HOUR)
    lives = [await ask(scripts, "PTTL", key) for key in others]
    assert lives.pop() == -2
    assert all(0 < life <= 2 * HOUR + HOUR // 2 for life in lives)
