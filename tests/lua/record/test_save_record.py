from __future__ import annotations

from typing import Literal

import pytest

from redis_state.errors import CorruptState
from redis_state.scripts import Fence, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def save(
    scripts: Scripts,
    key: str,
    write: str,
    *,
    expected: int | Literal["+"] | None = None,
    fence: Fence | None = None,
    member: str | None = None,
    ttl_ms: int = HOUR,
    **given: bytes,
) -> Reply:
    index = None if member is None else f"{key}:index"
    if isinstance(expected, int):
        return await scripts.save_record(
            key,
            given,
            write=write,
            ttl_ms=ttl_ms,
            expected=expected,
            index=index,
            member=member,
            fence=fence,
        )
    return await scripts.put_record(
        key,
        given,
        write=write,
        ttl_ms=ttl_ms,
        only_if_there=expected == "+",
        index=index,
        member=member,
        fence=fence,
    )


async def test_versions_count_and_a_repeated_write_is_recognised(
    scripts: Scripts, keys: Keys
) -> None:
    key = keys.memory("m")
    for _ in range(2):
        assert await save(scripts, key, "one", expected=0, a=b"1", b=b"2") == ok(1)
    assert await save(scripts, key, "two", expected=0, a=b"3") == no(ReplyCode.STALE, 1, b"one")
    assert await save(scripts, key, "two", expected=2, a=b"3") == no(ReplyCode.STALE, 1, b"one")
    for _ in range(2):
        assert await save(scripts, key, "two", expected=1, a=b"3") == ok(2)
    assert await save(scripts, key, "three") == ok(3)
    found = await fields(scripts, key)
    assert (found["a"], found["b"], found["version"]) == (b"3", b"2", b"3")
    assert 0 < (await lives(scripts, key))[0] <= HOUR


async def test_only_what_is_there_is_amended(scripts: Scripts, keys: Keys) -> None:
    key = keys.memory("m")
    assert await save(scripts, key, "one", expected="+", a=b"1") == no(ReplyCode.MISSING)
    assert await fields(scripts, key) == {}
    assert await save(scripts, key, "one", a=b"1") == ok(1)
    for _ in range(2):
        assert await save(scripts, key, "two", expected="+", a=b"2") == ok(2)
    assert (await fields(scripts, key))["a"] == b"2"


async def test_a_stale_epoch_writes_nothing_but_its_own_repetition_is_told_the_truth(
    scripts: Scripts, keys: Keys
) -> None:
    key, lease = keys.task("s", "t"), keys.lease("s", "t")
    taken = await scripts.acquire_lease(lease, owner="o", duration_ms=HOUR, keep_ms=HOUR)
    fence = Fence(lease, taken.facts[0], "o")
    assert await save(scripts, key, "one", fence=fence, expected=0, a=b"1") == ok(1)
    await scripts.release_lease(lease, owner="o", epoch=fence.epoch)
    later = await scripts.acquire_lease(lease, owner="p", duration_ms=HOUR, keep_ms=HOUR)
    assert await save(scripts, key, "one", fence=fence, expected=0, a=b"1") == ok(1)
    lost = no(ReplyCode.LOST, later.facts[0])
    assert await save(scripts, key, "two", fence=fence, a=b"2") == lost
    assert await save(scripts, key, "two", fence=fence, expected=1, a=b"2") == lost
    assert (await fields(scripts, key))["a"] == b"1"


async def test_the_index_lists_what_lives_and_lives_as_long_as_the_longest(
    scripts: Scripts, keys: Keys
) -> None:
    key = keys.memory("m")
    index = f"{key}:index"
    await save(scripts, key, "one", member="long", ttl_ms=2 * HOUR)
    assert HOUR < (await lives(scripts, index))[0] <= 2 * HOUR
    await ask(scripts, "ZADD", index, 1, "gone")
    await save(scripts, key, "two", member="")
    assert await ask(scripts, "ZRANGE", index, 0, -1) == [b"\xff", b"long"]
    assert HOUR < (await lives(scripts, index))[0] <= 2 * HOUR
    assert 0 < (await lives(scripts, key))[0] <= HOUR


async def test_a_key_of_another_type_is_told(scripts: Scripts, keys: Keys) -> None:
    key = keys.memory("m")
    await ask(scripts, "SET", key, "x", "PX", HOUR)
    with pytest.raises(CorruptState):
        await save(scripts, key, "one", a=b"1")


async def test_a_repetition_without_a_version_leaves_what_others_saved_since(
    scripts: Scripts, keys: Keys
) -> None:
    key = keys.memory("m")
    assert await save(scripts, key, "mine", a=b"mine") == ok(1)
    assert await save(scripts, key, "theirs", a=b"theirs") == ok(2)
    assert await save(scripts, key, "versioned", expected=2, a=b"versioned") == ok(3)
    for write, version in (("mine", 1), ("theirs", 2), ("versioned", 3)):
        assert await save(scripts, key, write, a=write.encode()) == ok(version)
    for number in range(4, 30):
        assert await save(scripts, key, f"w{number}", a=b"%d" % number) == ok(number)
    found = await fields(scripts, key)
    assert (found["a"], found["version"]) == (b"29", b"29")
    # The newest 16 are known.
    assert [each.split()[0] for each in found["recent"].split(b";")[:-1]] == [
        b"w%d" % number for number in range(14, 30)
    ]
    assert await save(scripts, key, "w14", a=b"again") == ok(14)
    assert (await fields(scripts, key))["a"] == b"29"


async def test_a_repetition_with_a_version_is_no_conflict_with_what_others_saved_since(
    scripts: Scripts, keys: Keys
) -> None:
    key = keys.memory("m")
    assert await save(scripts, key, "one", expected=0, a=b"1") == ok(1)
    assert await save(scripts, key, "two", expected=1, a=b"2") == ok(2)
    assert await save(scripts, key, "three", a=b"3") == ok(3)
    for write, version in (("one", 1), ("two", 2), ("three", 3)):
        assert await save(scripts, key, write, expected=version - 1, a=b"again") == ok(version)
    assert await save(scripts, key, "four", expected=1) == no(ReplyCode.STALE, 3, b"three")
    assert (await fields(scripts, key))["a"] == b"3"
