from __future__ import annotations

from redis_state.scripts import Fence, LogLimits, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, lives, no, ok


async def _change(
    scripts: Scripts,
    keys: Keys,
    name: str,
    *ids: bytes,
    clears: bool = False,
    max_rows: int = 0,
    most: int = 9,
    fence: Fence | None = None,
) -> Reply:
    return await scripts.change_log(
        keys.conversation("s"),
        LogLimits(max_rows, HOUR, announce=False),
        changes=keys.conversation_changes("s"),
        name=name,
        most=most,
        clears=clears,
        rows_in=[part for each in ids for part in (each, b"row")],
        fence=fence,
    )


async def test_a_change_is_made_once_for_its_name(scripts: Scripts, keys: Keys) -> None:
    log = keys.conversation("s")
    await append(scripts, log, "old", "older")
    assert await _change(scripts, keys, "c", b"a", b"b", clears=True) == ok(1)
    assert await rows_of(scripts, log) == [(3, "a"), (4, "b")]
    await append(scripts, log, "between")
    assert await _change(scripts, keys, "c", b"a", b"b", clears=True) == ok(0)
    assert await rows_of(scripts, log) == [(3, "a"), (4, "b"), (5, "between")]
    await scripts.clear_log(log)
    assert await _change(scripts, keys, "c", b"a", b"b", clears=True) == ok(0)
    assert await rows_of(scripts, log) == []
    for left_ms in await lives(scripts, log.ids, keys.conversation_changes("s")):
        assert 0 < left_ms <= 1.5 * HOUR


async def test_a_change_may_clear_an_empty_log_or_add_what_is_there(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.conversation("s")
    assert await _change(scripts, keys, "c", clears=True) == ok(1)
    assert await ask(scripts, "EXISTS", log.rows, log.ids) == 0
    await append(scripts, log, "a")
    assert await _change(scripts, keys, "d", b"a", b"b") == ok(1)
    assert await rows_of(scripts, log) == [(1, "a"), (2, "b")]


async def test_the_newest_names_and_rows_are_kept(scripts: Scripts, keys: Keys) -> None:
    for number in range(4):
        ids = [b"%d-%d" % (number, each) for each in range(3)]
        assert await _change(scripts, keys, f"c{number}", *ids, most=2, max_rows=4) == ok(1)
    names = await ask(scripts, "ZRANGE", keys.conversation_changes("s"), 0, -1)
    assert names == [b"c2", b"c3"]
    assert (await rows_of(scripts, keys.conversation("s")))[-1] == (12, "3-2")
    assert len(await rows_of(scripts, keys.conversation("s"))) <= 5


async def test_the_newest_name_is_kept_when_the_clock_was_set_back(
    scripts: Scripts, keys: Keys
) -> None:
    changes, ahead = keys.conversation_changes("s"), await clock_ms(scripts) + HOUR
    # Changes of before the clock was set back.
    await ask(scripts, "ZADD", changes, ahead, "c0", ahead + 1, "c1")
    for number in (2, 3):
        assert await _change(scripts, keys, f"c{number}", b"%d" % number, most=2) == ok(1)
        await append(scripts, keys.conversation("s"), f"behind {number}")
        repeated = await _change(scripts, keys, f"c{number}", b"x", most=2, clears=True)
        assert repeated == ok(0)
    assert await ask(scripts, "ZRANGE", changes, 0, -1) == [b"c2", b"c3"]
    assert len(await rows_of(scripts, keys.conversation("s"))) == 4


async def test_a_lost_claim_changes_nothing(scripts: Scripts, keys: Keys) -> None:
    await append(scripts, keys.conversation("s"), "old")
    lease = keys.conversation_lease("s")
    fences: list[Fence] = []
    for owner in ("old", "new"):
        reply = await scripts.acquire_lease(lease, owner=owner, duration_ms=HOUR, keep_ms=HOUR)
        fences.append(Fence(lease, int(reply.facts[0]), owner))
        await scripts.release_lease(lease, owner=owner, epoch=fences[-1].epoch)
    old, new = fences
    for clears in (True, False):
        reply = await _change(scripts, keys, "c", b"a", clears=clears, fence=old)
        assert reply == no(ReplyCode.LOST, new.epoch)
    assert await rows_of(scripts, keys.conversation("s")) == [(1, "old")]
    assert await _change(scripts, keys, "c", b"a", fence=new) == ok(1)
