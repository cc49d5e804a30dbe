from __future__ import annotations

import asyncio
from typing import Any

from redis_state.models.version import Version
from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.key_groups import ScheduleKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok

AHEAD_MS = HOUR


def keys_of(keys: Keys, schedule_id: str = "s") -> ScheduleKeys:
    return ScheduleKeys(keys.schedule(schedule_id), keys.schedules(), keys.schedules_due())


async def save(scripts: Scripts, keys: Keys, write: str, **given: Any) -> Reply:
    requested: dict[str, Any] = {"expected": 0, "check_ms": None, "sooner": False, "restart": False}
    requested |= given
    return await scripts.save_schedule(
        keys_of(keys),
        {"paused": write.encode()},
        write=write,
        ttl_ms=HOUR,
        schedule_id="s",
        **requested,
    )


async def looked_at(scripts: Scripts, keys: Keys) -> int | None:
    score = await ask(scripts, "ZSCORE", keys.schedules_due(), "s")
    return None if score is None else int(score)


async def test_a_save_writes_record_place_and_look_in_one_step(
    scripts: Scripts, keys: Keys
) -> None:
    before_ms = await clock_ms(scripts)
    reply = await save(scripts, keys, "w1", check_ms=HOUR, restart=True)
    assert reply.word is ReplyCode.OK
    version, now_ms = reply.facts
    assert version == 1
    found = await fields(scripts, keys.schedule("s"))
    assert found["after"] == now_ms
    assert found["paused"] == b"w1"
    assert before_ms <= int(now_ms) <= await clock_ms(scripts)
    assert await looked_at(scripts, keys) == int(now_ms) + HOUR
    assert await ask(scripts, "ZRANGE", keys.schedules(), 0, -1) == [b"s"]
    of = keys_of(keys)
    lifetimes = await lives(scripts, of.schedule, of.schedules, of.due, of.clock)
    assert all(life > 0 for life in lifetimes)
    assert max(lifetimes[:2]) <= HOUR


async def test_a_repetition_finds_its_own_write_and_leaves_the_look(
    scripts: Scripts, keys: Keys
) -> None:
    await save(scripts, keys, "w1", check_ms=HOUR, restart=True)
    await ask(scripts, "ZADD", keys.schedules_due(), 7, "s")
    before = await fields(scripts, keys.schedule("s"))
    assert (await save(scripts, keys, "w1", check_ms=HOUR, restart=True)).facts[0] == 1
    assert await looked_at(scripts, keys) == 7
    assert await fields(scripts, keys.schedule("s")) == before


async def test_a_repetition_is_known_behind_the_saves_of_others(
    scripts: Scripts, keys: Keys
) -> None:
    await save(scripts, keys, "w1")
    await save(scripts, keys, "w2", expected=Version(1, "w1"))
    for number in range(14):
        before = Version(2 + number, f"w{2 + number}")
        await save(scripts, keys, f"w{3 + number}", expected=before)
    assert (await save(scripts, keys, "w1")).facts[0] == 1
    last = Version(16, "w16")
    assert (await save(scripts, keys, "w17", expected=last)).facts[0] == 17
    assert (await save(scripts, keys, "w1")).word is ReplyCode.STALE


async def test_another_version_refuses_and_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    await save(scripts, keys, "w1", check_ms=HOUR)
    before = await fields(scripts, keys.schedule("s"))
    looked_ms = await looked_at(scripts, keys)
    stale = no(ReplyCode.STALE, 1, b"w1")
    # A number alone is given again by a server whose history went back.
    for expected in (0, Version(1, "other"), Version(2, "w1")):
        assert await save(scripts, keys, "w2", expected=expected, check_ms=0, restart=True) == stale
    assert await fields(scripts, keys.schedule("s")) == before
    assert await looked_at(scripts, keys) == looked_ms
    assert (await save(scripts, keys, "w2", expected=Version(1, "w1"))).facts[0] == 2


async def test_the_look_stays_is_given_or_becomes_sooner(scripts: Scripts, keys: Keys) -> None:
    version = 0

    async def look(**given: Any) -> int:
        nonlocal version
        now_ms = await clock_ms(scripts)
        expected = Version(version, f"w{version}") if version else 0
        reply = await save(scripts, keys, f"w{version + 1}", expected=expected, **given)
        version = reply.facts[0]
        when = await looked_at(scripts, keys)
        assert when is not None
        return round((when - now_ms) / HOUR)

    assert await look(check_ms=3 * HOUR, sooner=True) == 3
    assert await look() == 3
    assert await look(check_ms=4 * HOUR, sooner=True) == 3
    assert await look(check_ms=2 * HOUR, sooner=True) == 2
    assert await look(check_ms=5 * HOUR) == 5


async def test_a_claim_that_has_not_seen_a_save_does_not_take_its_look_off(
    scripts: Scripts, keys: Keys
) -> None:
    due = keys.schedules_due()
    await save(scripts, keys, "w1", check_ms=0)
    mark, *claimed = (await scripts.claim_due(due, limit=1, hold_ms=HOUR)).facts
    assert claimed[0] == b"s"
    last = Version(1, "w1")
    assert (await save(scripts, keys, "w2", expected=last, check_ms=2 * HOUR, sooner=True)).facts
    assert await scripts.settle_claim(due, mark=mark, entries=[(b"s", None)]) == ok(0)
    # It is due as it would have been if the claimer had died.
    when = await looked_at(scripts, keys)
    assert when is not None
    assert when == int(float(mark))


async def test_a_clock_that_is_set_back_makes_looks_due_soon(scripts: Scripts, keys: Keys) -> None:
    due = keys.schedules_due()
    now_ms = await clock_ms(scripts)
    await ask(scripts, "ZADD", due, now_ms + AHEAD_MS + 500, "other")
    await ask(scripts, "SET", f"{due}:clock", now_ms + AHEAD_MS, "PX", HOUR)
    await save(scripts, keys, "w1", check_ms=HOUR)
    moved_ms = float(await ask(scripts, "ZSCORE", due, "other"))
    assert moved_ms <= await clock_ms(scripts) + 1_000
    assert await looked_at(scripts, keys) is not None


async def test_of_many_writers_of_one_version_one_wins(scripts: Scripts, keys: Keys) -> None:
    replies = await asyncio.gather(*(save(scripts, keys, f"w{n}") for n in range(50)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.STALE] * 49
