from __future__ import annotations

from typing import Literal

import pytest

from redis_state.primitives.watchlist.watchlist import check_after
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, ok


async def test_the_later_of_two_times_stands_unless_another_is_wanted(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)

    async def put(delay_ms: int, stands: Literal["later", "given", "first"] = "later") -> int:
        reply = await scripts.watch_entry(watch, entry=b"e", delay_ms=delay_ms, stands=stands)
        when = int(await ask(scripts, "ZSCORE", watch, "e"))
        assert reply == ok(when)
        return round((when - now) / HOUR)

    assert await put(2 * HOUR, "first") == 2
    assert await put(2 * HOUR) == 2
    for delay_ms in (HOUR, 3 * HOUR):
        assert await put(delay_ms, "first") == 2
    assert await put(HOUR) == 2
    assert await put(HOUR, "given") == 1
    assert await put(3 * HOUR, "given") == 3
    assert await put(4 * HOUR) == 4
    assert await ask(scripts, "ZCARD", watch) == 1


@pytest.mark.parametrize("stands", ["sooner", "room"])
async def test_a_claim_of_what_is_to_be_due_sooner_ends_and_its_time_stays(
    scripts: Scripts, keys: Keys, stands: Literal["sooner", "room"]
) -> None:
    watch = keys.watch(0)

    async def sooner(delay_ms: int) -> int:
        reply = await scripts.watch_entry(watch, entry=b"e", delay_ms=delay_ms, stands=stands)
        return int(reply.facts[0])

    was = await sooner(0)
    assert await sooner(HOUR) == was
    reply = await scripts.claim_due(watch, limit=1, hold_ms=HOUR, about=None, indexed=False)
    mark, entry = reply.facts[:2]
    assert entry == b"e"
    # The claimer may have seen what it was before.
    assert await sooner(2 * HOUR) == int(float(mark))
    settled = scripts.settle_claim(
        watch, since=None, dated=False, mark=mark, entries=[(b"e", None)]
    )
    assert await settled == ok(0)
    assert await sooner(2 * HOUR) == int(float(mark))


@pytest.mark.parametrize(
    ("stands", "delay_ms", "expected_ms"),
    [
        ("given", HOUR, HOUR),
        ("given", 3 * HOUR, 3 * HOUR),
        ("later", HOUR, 2 * HOUR),
        ("later", 3 * HOUR, 3 * HOUR),
        ("sooner", HOUR, HOUR),
        ("sooner", 3 * HOUR, 2 * HOUR),
    ],
)
async def test_what_was_only_checked_may_need_a_repair_once_it_is_put(
    scripts: Scripts,
    keys: Keys,
    stands: Literal["given", "later", "sooner"],
    delay_ms: int,
    expected_ms: int,
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)
    await ask(scripts, "ZADD", watch, check_after(now + 2 * HOUR), "e")
    reply = await scripts.watch_entry(watch, entry=b"e", delay_ms=delay_ms, stands=stands)
    when = int(await ask(scripts, "ZSCORE", watch, "e"))
    assert reply == ok(when)
    assert 0 <= when - now - expected_ms < HOUR


async def test_what_is_checked_from_time_to_time_stays_so_if_it_is_put_back(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    due_ms = await clock_ms(scripts) + 2 * HOUR
    await ask(scripts, "ZADD", watch, check_after(due_ms), "e")
    await ask(scripts, "PEXPIRE", watch, HOUR)
    reply = await scripts.watch_entry(watch, entry=b"e", delay_ms=HOUR, stands="first")
    assert reply == ok(due_ms)
    assert int(await ask(scripts, "ZSCORE", watch, "e")) == check_after(due_ms)
