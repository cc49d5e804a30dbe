from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from redis_state.scripts import Fence, Reply, ReplyCode, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def save(
    scripts: Scripts,
    keys: Keys,
    write: str,
    expected: int,
    given: Mapping[str, bytes] = MappingProxyType({}),
    *,
    base: str = "",
    tags: str = "/ active/",
    dropped: Sequence[str] = (),
    fence: Fence | None = None,
    ttl_ms: int = HOUR,
    session_id: str = "a",
    born: str = "1",
) -> Reply:
    return await scripts.save_session(
        keys.agent_session(session_id),
        given,
        index=keys.agent_sessions(0),
        expiries=keys.agent_expiries(0),
        session_id=session_id,
        tags=tags,
        expected=expected,
        born=born,
        base=base,
        dropped=dropped,
        write=write,
        ttl_ms=ttl_ms,
        fence=fence,
    )


async def delete(scripts: Scripts, keys: Keys) -> Reply:
    return await scripts.delete_session(
        keys.agent_session("a"),
        index=keys.agent_sessions(0),
        expiries=keys.agent_expiries(0),
        session_id="a",
    )


async def members(scripts: Scripts, keys: Keys) -> list[str]:
    created = (await fields(scripts, keys.agent_session("a")))["created"].decode()
    found = await ask(scripts, "ZRANGE", keys.agent_sessions(0), 0, -1)
    return [member.decode().replace(created, "C") for member in found]


async def test_each_save_counts_and_a_repeated_one_is_recognised(
    scripts: Scripts, keys: Keys
) -> None:
    for _ in range(2):
        assert await save(scripts, keys, "one", 0, {"head": b"1", "x": b"1"}) == ok(1)
    assert await save(scripts, keys, "two", 0, {"head": b"2"}) == no(ReplyCode.STALE, 1)
    assert await save(scripts, keys, "two", 2, {"head": b"2"}) == no(ReplyCode.STALE, 1)
    for _ in range(2):
        assert await save(scripts, keys, "two", 1, {"head": b"2"}, base="one") == ok(2)
    found = await fields(scripts, keys.agent_session("a"))
    assert (found["head"], found["x"], found["version"]) == (b"2", b"1", b"2")
    beside = keys.agent_sessions(0), keys.agent_expiries(0)
    both = await lives(scripts, keys.agent_session("a"), *beside)
    assert all(0 < life <= HOUR for life in both)


async def test_a_save_that_others_followed_is_recognised_for_sixteen_versions(
    scripts: Scripts, keys: Keys
) -> None:
    for version in range(20):
        assert await save(scripts, keys, f"w{version}", version) == ok(version + 1)
    for version in range(4, 20):
        assert await save(scripts, keys, f"w{version}", version) == ok(version + 1)
    for version in range(4):
        assert await save(scripts, keys, f"w{version}", version) == no(ReplyCode.STALE, 20)
    # An id that is a part of another one is not that one.
    assert await save(scripts, keys, "w1", 19) == no(ReplyCode.STALE, 20)
    assert await save(scripts, keys, "9", 19) == no(ReplyCode.STALE, 20)
    assert (await fields(scripts, keys.agent_session("a")))["version"] == b"20"


async def test_without_a_session_there_is_nothing_to_save_over(
    scripts: Scripts, keys: Keys
) -> None:
    assert await save(scripts, keys, "one", 3, {"head": b"1"}) == no(ReplyCode.MISSING)
    assert await fields(scripts, keys.agent_session("a")) == {}


async def test_parts_of_another_life_are_never_added_to(scripts: Scripts, keys: Keys) -> None:
    await save(scripts, keys, "one", 0, {"head": b"1"})
    session = keys.agent_session("a")
    for deleted in (1, 0):
        assert await delete(scripts, keys) == ok(deleted)
    await save(scripts, keys, "other", 0, {"head": b"2"}, born="2")
    assert await save(scripts, keys, "two", 1, {"head": b"3"}, born="1") == no(ReplyCode.AGAIN)
    assert await save(scripts, keys, "two", 1, {"head": b"3"}, base="one") == no(ReplyCode.AGAIN)
    assert (await fields(scripts, session))["head"] == b"2"


async def test_what_is_dropped_goes_and_a_whole_save_keeps_nothing_else(
    scripts: Scripts, keys: Keys
) -> None:
    many = {f"p{n}": b"x" for n in range(450)}
    await save(scripts, keys, "one", 0, many)
    gone = [f"p{n}" for n in range(1, 450)]
    assert await save(scripts, keys, "two", 1, {"y": b"1"}, base="one", dropped=gone) == ok(2)
    session = keys.agent_session("a")
    own = {"write", "writes", "version", "created", "tags", "born"}
    assert set(await fields(scripts, session)) - own == {"p0", "y"}
    created = (await fields(scripts, session))["created"]
    assert await save(scripts, keys, "three", 2, many) == ok(3)
    found = await fields(scripts, session)
    assert set(found) - own == set(many)
    assert found["created"] == created


async def test_the_listing_follows_the_tags(scripts: Scripts, keys: Keys) -> None:
    await save(scripts, keys, "one", 0, tags="/ active/")
    assert await members(scripts, keys) == ["/:C:a", "active/:C:a"]
    await save(scripts, keys, "two", 1, tags="/ failed/")
    assert await members(scripts, keys) == ["/:C:a", "failed/:C:a"]
    assert await ask(scripts, "ZCARD", keys.agent_expiries(0)) == 1
    await delete(scripts, keys)
    beside = keys.agent_sessions(0), keys.agent_expiries(0)
    assert await ask(scripts, "EXISTS", keys.agent_session("a"), *beside) == 0


async def test_each_save_sweeps_ten_that_have_expired_and_no_other(
    scripts: Scripts, keys: Keys
) -> None:
    for n in range(25):
        await save(scripts, keys, f"w{n}", 0, session_id=f"s{n}", ttl_ms=10)
    await save(scripts, keys, "alive", 0, session_id="alive")

    async def gone() -> bool:
        names = [keys.agent_session(f"s{n}") for n in range(25)]
        return int(await ask(scripts, "EXISTS", *names)) == 0

    await eventually(gone, "25 sessions have expired")
    left: list[tuple[int, int]] = []
    for n in range(4):
        counts = [
            await ask(scripts, "ZCARD", key)
            for key in (keys.agent_expiries(0), keys.agent_sessions(0))
        ]
        left.append((counts[0], counts[1]))
        await save(scripts, keys, f"x{n}", n + 1, session_id="alive")
    # Two places for each; the saves before have swept some already.
    assert all(places == 2 * entries for entries, places in left)
    assert left[-1] == (1, 2)
    assert left[0][0] - left[1][0] <= 10
    assert await ask(scripts, "EXISTS", keys.agent_session("alive")) == 1


async def test_a_stale_epoch_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    lease = keys.agent_lease("a")
    fences: list[Fence] = []
    for owner in ("one", "two"):
        taken = await scripts.acquire_lease(lease, owner=owner, duration_ms=HOUR, keep_ms=HOUR)
        fences.append(Fence(lease, taken.facts[0], owner))
        await scripts.release_lease(lease, owner=owner, epoch=fences[-1].epoch)
    stale, current = fences
    assert await save(scripts, keys, "w", 0, fence=stale) == no(ReplyCode.LOST, current.epoch)
    assert await save(scripts, keys, "w", 0, fence=current) == ok(1)


async def test_one_of_many_savers_wins_each_version(scripts: Scripts, keys: Keys) -> None:
    await save(scripts, keys, "first", 0)
    replies = await asyncio.gather(*(save(scripts, keys, f"w{n}", 1) for n in range(20)))
    assert sum(reply == ok(2) for reply in replies) == 1
    assert sum(reply == no(ReplyCode.STALE, 2) for reply in replies) == 19
