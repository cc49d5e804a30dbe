from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, lives, ok


async def test_a_member_stays_as_long_as_its_longest_note(scripts: Scripts, keys: Keys) -> None:
    index = keys.artifact_sessions()
    assert await scripts.add_member(index, member="a", ttl_ms=2 * HOUR) == ok(1)
    for _ in range(2):
        assert await scripts.add_member(index, member="a", ttl_ms=HOUR) == ok(0)
    assert HOUR < (await lives(scripts, index))[0] <= 2 * HOUR + 1
    await ask(scripts, "ZADD", index, 1, "gone")
    assert await scripts.add_member(index, member="\ud800", ttl_ms=HOUR) == ok(1)
    assert await ask(scripts, "ZRANGE", index, 0, -1) == [b"\xed\xa0\x80", b"a"]


async def test_a_member_may_stay_for_ever(scripts: Scripts, keys: Keys) -> None:
    index = keys.artifact_sessions()
    await scripts.add_member(index, member="a", ttl_ms=0)
    assert await scripts.add_member(index, member="a", ttl_ms=HOUR) == ok(0)
    assert await lives(scripts, index) == [-1]
    await ask(scripts, "ZREM", index, "a")
    assert await scripts.add_member(index, member="b", ttl_ms=HOUR) == ok(1)
    assert 0 < (await lives(scripts, index))[0] <= HOUR + 1
    await ask(scripts, "DEL", index)


async def test_a_member_is_taken_out_only_as_it_was_read(scripts: Scripts, keys: Keys) -> None:
    index = keys.artifact_sessions()
    await scripts.add_member(index, member="m", ttl_ms=HOUR)
    read = await ask(scripts, "ZSCORE", index, "m")
    await scripts.add_member(index, member="m", ttl_ms=2 * HOUR)
    assert await scripts.unlist_member(index, member="m", expiry=read) == ok(0)
    assert await ask(scripts, "ZCARD", index) == 1
    read = await ask(scripts, "ZSCORE", index, "m")
    assert await scripts.unlist_member(index, member="m", expiry=read) == ok(1)
    assert await scripts.unlist_member(index, member="m", expiry=read) == ok(0)
