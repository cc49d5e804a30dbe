"""Rates: how often tasks of one key begin, and places of rates that callers name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from redis_state.scripts import EndedJob, EndedJobs, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.flows import claim, claim_places, end, limit, put
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import ensure_job, job_payload, queued_job


async def test_no_rate_of_keys_holds_for_backfills(scripts: Scripts, keys: Keys) -> None:
    for task in ("a", "b"):
        await put(scripts, keys, task, "b:s")
        await put(scripts, keys, f"{task}-in-turn", "1:s")
    await limit(scripts, keys, key_rate=f"1 {HOUR}")
    first = await claim(scripts, keys)
    assert first.keys() == {"a", "a-in-turn"}
    for given in first.items():
        await end(scripts, keys, *given)
    assert (await claim(scripts, keys)).keys() == {"b"}


async def test_a_key_that_waits_for_its_rate_by_a_clock_that_was_set_back_takes_its_turn(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, key_rate="1 30")
    for task in ("a", "b"):
        await put(scripts, keys, task, "k:tenant")
    assert list(await claim(scripts, keys)) == ["a"]
    assert await claim(scripts, keys) == {}
    # The clock goes back by a day.
    now = await clock_ms(scripts)
    for name in (keys.queue("q").waits, keys.queue("q").rates):
        await ask(scripts, "ZADD", name, "XX", now + 24 * HOUR, "k:tenant")
    # The rate is clamped to its period, and then the key waits by the new clock.
    assert await ensure_job(scripts, keys, "b", key="k:tenant") == "WAITS"
    assert await claim(scripts, keys) == {}
    await clock_passes(scripts, await clock_ms(scripts) + 35)
    assert list(await claim(scripts, keys)) == ["b"]


async def test_a_key_starts_as_often_as_its_rate_allows(scripts: Scripts, keys: Keys) -> None:
    await limit(scripts, keys, key_rate=f"2 {HOUR}", rate_for_fast=f"3 {HOUR}")
    for number in range(4):
        await put(scripts, keys, f"a{number}", "a")
        await put(scripts, keys, f"f{number}", "fast")
    claimed = await claim(scripts, keys)
    assert Counter(task[0] for task in claimed) == {"a": 2, "f": 3}
    await limit(scripts, keys, key_rate="")
    assert [task[0] for task in await claim(scripts, keys)] == ["a", "a"]


async def test_a_rate_comes_back_with_time(scripts: Scripts, keys: Keys) -> None:
    await limit(scripts, keys, key_rate="1 40")
    await put(scripts, keys, "a", "k")
    await put(scripts, keys, "b", "k")
    assert list(await claim(scripts, keys)) == ["a"]
    now = await clock_ms(scripts)
    await clock_passes(scripts, now + 40)
    assert list(await claim(scripts, keys)) == ["b"]


@pytest.mark.parametrize("again_ms", [None, 0])
@pytest.mark.parametrize("begun", [True, False])
async def test_what_has_not_begun_gives_back_what_it_took_of_a_rate(
    scripts: Scripts, keys: Keys, *, begun: bool, again_ms: int | None
) -> None:
    await limit(scripts, keys, key_rate=f"2 {HOUR}")
    for task in ("a", "b", "c", "d"):
        await put(scripts, keys, task, "k")
    (first, place, claimed), second = await claim_places(scripts, keys)
    assert (first, second[0]) == ("a", "b")
    job = EndedJob(
        job_payload(keys, "a"), queued_job(keys, "a").id.encode(), claimed, again_ms, place, begun
    )
    for _ in range(2):
        await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)
    # One start is there again, and not two for the repetition.
    back = ["c"] if again_ms is None else ["a"]
    assert list(await claim(scripts, keys)) == ([] if begun else back)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("how", ["ensured", "waits", "dropped", "gone"])
async def test_a_claim_that_others_end_gives_back_what_it_took_unless_its_task_has_begun(
    scripts: Scripts, keys: Keys, *, begun: bool, how: str
) -> None:
    await limit(scripts, keys, key_rate=f"1 {HOUR}")
    for task in ("a", "b"):
        await put(scripts, keys, task, "k")
    ((task, claimed),) = (await claim(scripts, keys)).items()
    assert task == "a"
    await clock_passes(scripts, await clock_ms(scripts))
    if how in ("ensured", "waits"):
        runs = int(begun)
        job = queued_job(keys, "a", runs=runs, key="k")
        if how == "waits":
            payload = job_payload(keys, "a", runs=runs)
            await scripts.queue_job(keys.queue("q"), payload=payload, job=job)
        found = await ensure_job(
            scripts, keys, "a", key="k", runs=runs, patience_ms=0, retired=int(claimed)
        )
        assert found == ("WAITS" if how == "waits" else "RELEASED")
    else:
        name = queued_job(keys, "a").id.rpartition(":")[0]
        # Of a task that is gone nobody knows.
        version, ran = (None, None) if how == "gone" else (1, int(begun))
        for ended in (1, 0):
            reply = await scripts.drop_claims(
                keys.queue("q"), before_ms=await clock_ms(scripts), tasks=[(name, version, ran)]
            )
            assert reply == ok(ended)
    back = await claim(scripts, keys)
    assert len(back) == (0 if begun or how == "gone" else 1)
    # What its own worker says later changes nothing.
    job_name = queued_job(keys, "a").id.encode()
    late = EndedJob(job_payload(keys, "a"), job_name, claimed, None, begun=False)
    await scripts.end_jobs(keys.queue("q"), EndedJobs([late]), life_ms=HOUR)
    assert await claim(scripts, keys) == {}


async def test_a_claim_of_before_a_rate_gives_nothing_back(scripts: Scripts, keys: Keys) -> None:
    for task in ("a", "b", "c"):
        await put(scripts, keys, task, "k")
    # What an earlier claim took, of whose end an earlier version knew.
    took = "took:" + queued_job(keys, "a").id.rpartition(":")[0]
    await ask(scripts, "HSET", keys.queue("q").owners, took, "0")
    ((_, place, claimed),) = await claim_places(scripts, keys, 1)
    await limit(scripts, keys, key_rate=f"1 {HOUR}")
    assert list(await claim(scripts, keys)) == ["b"]
    name = queued_job(keys, "a").id.encode()
    job = EndedJob(job_payload(keys, "a"), name, claimed, None, place, begun=False)
    await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)
    assert await claim(scripts, keys) == {}


async def test_what_is_given_back_while_there_is_no_rate_is_there_for_the_next_one(
    scripts: Scripts, keys: Keys
) -> None:
    rate = f"1 {HOUR}"
    await limit(scripts, keys, key_rate=rate)
    for task in ("a", "b"):
        await put(scripts, keys, task, "k")
    ((_, place, claimed),) = await claim_places(scripts, keys)
    await limit(scripts, keys, key_rate="")
    name = queued_job(keys, "a").id.encode()
    job = EndedJob(job_payload(keys, "a"), name, claimed, None, place, begun=False)
    await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)
    await limit(scripts, keys, key_rate=rate)
    assert list(await claim(scripts, keys)) == ["b"]


@pytest.mark.parametrize(
    ("before", "after", "starts"),
    [
        # They had 20 minutes each, and not 42 hours.
        pytest.param(f"3 {HOUR}", f"4 {168 * HOUR}", 4, id="longer"),
        # It had the whole day: none of that is taken then.
        pytest.param(f"1 {24 * HOUR}", f"5 {24 * HOUR}", 5, id="more"),
        # They had half of a day, in which one begins.
        pytest.param(f"6 {24 * HOUR}", f"2 {24 * HOUR}", 2, id="fewer"),
        # What was taken of a longer period is all of a shorter one.
        pytest.param(f"2 {24 * HOUR}", f"4 {HOUR}", 2, id="shorter"),
    ],
)
async def test_what_a_claim_took_is_given_back_by_the_rate_of_its_time(
    scripts: Scripts, keys: Keys, before: str, after: str, starts: int
) -> None:
    for number in range(20):
        await put(scripts, keys, f"a{number:02}", "k")
    await limit(scripts, keys, key_rate=before)
    left = await claim(scripts, keys, 3)
    await limit(scripts, keys, key_rate=after)
    # These begin before anybody finds the claims of the dead.
    begun = await claim(scripts, keys)
    gone = [(queued_job(keys, task).id.rpartition(":")[0], 1, 0) for task in left]
    reply = await scripts.drop_claims(
        keys.queue("q"), before_ms=await clock_ms(scripts), tasks=gone
    )
    assert reply == ok(len(left))
    begun |= await claim(scripts, keys)
    assert len(begun) == starts
    owners: list[bytes] = await ask(scripts, "HKEYS", keys.queue("q").owners)
    assert sum(name.startswith(b"of:") for name in owners) == starts


async def test_a_key_whose_rate_gets_a_shorter_period_starts_within_it(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, key_rate=f"1 {24 * HOUR}")
    for task in ("a", "b"):
        await put(scripts, keys, task, "k")
    assert list(await claim(scripts, keys)) == ["a"]
    await limit(scripts, keys, key_rate="1 40")
    assert await claim(scripts, keys) == {}
    await clock_passes(scripts, await clock_ms(scripts) + 40)
    assert list(await claim(scripts, keys)) == ["b"]


def rate_of(scripts: Scripts, keys: Keys, rate: str) -> Callable[..., Awaitable[tuple[int, str]]]:
    """Return how to take from a rate: the wait in ms, and the rate of the place."""

    async def take(cost: int = 1, rate: str = rate, under: str = "") -> tuple[int, str]:
        settings = keys.rate_settings()
        reply = await scripts.take_rate(
            keys.rates(), settings=settings, name="r", rate=rate, cost=cost, under=under
        )
        wait_ms, taken = reply.facts
        return int(wait_ms), taken.decode()

    return take


async def test_places_of_a_rate_come_in_order_and_are_forgotten_when_it_is_full(
    scripts: Scripts, keys: Keys
) -> None:
    rate = f"3 {HOUR}"
    take, third = rate_of(scripts, keys, rate), HOUR // 3
    assert [await take(), await take(2)] == [(0, rate)] * 2
    for cost, place in ((1, 1), (2, 3), (1, 4)):
        wait_ms, taken = await take(cost)
        assert (place - 1) * third < wait_ms <= place * third
        assert taken == rate
    # A place that has come is not taken again.
    assert await take(under=rate) == (0, rate)
    assert 4 * third < (await take())[0] <= 5 * third
    assert await ask(scripts, "ZCARD", keys.rates()) == 2
    assert all(life > 0 for life in await lives(scripts, keys.rates()))
    await ask(scripts, "DEL", keys.rates())
    assert await take(rate="1 10") == (0, "1 10")
    await clock_passes(scripts, await clock_ms(scripts) + 20)
    settings = keys.rate_settings()
    reply = await scripts.take_rate(keys.rates(), settings=settings, name="s", rate="1 10", cost=1)
    assert reply == ok(0, b"1 10")
    assert await ask(scripts, "ZCARD", keys.rates()) == 2


async def test_a_place_that_is_too_far_away_is_given_to_nobody(
    scripts: Scripts, keys: Keys
) -> None:
    week = 168 * HOUR
    take = rate_of(scripts, keys, f"1 {100 * HOUR}")
    assert [(await take())[1] != "" for _ in range(4)] == [True, True, False, False]
    assert await take() == (week, "")
    assert 0 < (await lives(scripts, keys.rates()))[0] <= 2 * week + 24 * HOUR


async def test_places_go_with_a_clock_that_was_set_back(scripts: Scripts, keys: Keys) -> None:
    take, rates = rate_of(scripts, keys, f"1 {HOUR}"), keys.rates()
    assert [(await take())[0] > 0 for _ in range(3)] == [False, True, True]
    # What it would be if the clock had been ten hours ahead.
    flat: list[bytes] = await ask(scripts, "ZRANGE", rates, 0, -1, "WITHSCORES")
    await ask(scripts, "DEL", rates)
    for name, score in zip(flat[::2], flat[1::2], strict=True):
        parts = name.split(b"\0")
        parts[2:] = [b"%d" % (int(at) + 10 * HOUR) for at in parts[2:]]
        await ask(scripts, "ZADD", rates, str(float(score) + 10 * HOUR), b"\0".join(parts))
    assert 2 * HOUR < (await take())[0] <= 3 * HOUR


async def test_a_rate_that_was_set_comes_before_what_callers_give(
    scripts: Scripts, keys: Keys
) -> None:
    settings, code = keys.rate_settings(), f"10 {HOUR}"
    take = rate_of(scripts, keys, code)
    for _ in range(2):
        assert await scripts.set_rate(settings, name="r", rate=f"2 {HOUR}") == ok()
    # More than a period has is all of it.
    assert await take(5) == (0, f"2 {HOUR}")
    for place in (1, 2, 3):
        assert (place - 1) * HOUR // 2 < (await take())[0] <= place * HOUR // 2
    assert all(life > 0 for life in await lives(scripts, settings))
    # By another rate it is no more than empty, and whose place comes takes a new one.
    assert await scripts.set_rate(settings, name="r", rate=f"4 {HOUR}") == ok()
    assert 0 < (await take(under=f"2 {HOUR}"))[0] <= HOUR // 4
    # Without it the callers' rate holds, and what was taken stays taken.
    assert await scripts.set_rate(settings, name="r", rate="") == ok()
    assert await ask(scripts, "EXISTS", settings) == 0
    assert 0 < (await take())[0] <= HOUR // 10
    # With a shorter period no wait is longer than that.
    assert await scripts.set_rate(settings, name="r", rate="4 40") == ok()
    assert 0 < (await take())[0] <= 10
    await clock_passes(scripts, await clock_ms(scripts) + 20)
    assert await take() == (0, "4 40")


async def test_of_two_rates_of_a_name_each_holds_for_those_that_give_it(
    scripts: Scripts, keys: Keys
) -> None:
    old, new = f"2 {HOUR}", f"4 {HOUR}"
    take = rate_of(scripts, keys, old)
    waits: dict[str, list[int]] = {old: [], new: []}
    for _ in range(8):
        for rate in (old, new):
            wait_ms, taken = await take(rate=rate)
            assert taken == rate
            waits[rate].append(wait_ms)
    # None passes its rate, and none waits for the places of the other.
    assert 6 * HOUR // 2 < waits[old][-1] <= 7 * HOUR // 2
    assert 6 * HOUR // 4 < waits[new][-1] <= 7 * HOUR // 4
    assert await ask(scripts, "ZCARD", keys.rates()) == 3
    # One that is set holds for all, and what was taken of a period stays taken.
    await scripts.set_rate(keys.rate_settings(), name="r", rate=f"3 {HOUR}")
    assert 0 < (await take(rate=new))[0] <= HOUR // 3
    assert await ask(scripts, "ZCARD", keys.rates()) == 2


async def test_a_rate_that_nobody_gives_any_more_is_forgotten_after_its_period(
    scripts: Scripts, keys: Keys
) -> None:
    take, rates = rate_of(scripts, keys, f"1 {HOUR}"), keys.rates()
    # Who computes rates may give any number of them.
    for number in range(100, 120):
        assert (await take(rate=f"{number} {HOUR}"))[0] == 0
    assert await ask(scripts, "ZCARD", rates) == 1 + 9
    await ask(scripts, "DEL", rates)
    assert await take(rate="1 10") == (0, "1 10")
    assert (await take())[0] <= 10
    await clock_passes(scripts, await clock_ms(scripts) + 20)
    assert HOUR // 2 < (await take())[0] <= HOUR
    assert await ask(scripts, "ZCARD", rates) == 1 + 1


async def test_each_of_many_rates_of_a_name_holds_for_those_that_give_it(
    scripts: Scripts, keys: Keys
) -> None:
    slow = f"1 {HOUR}"
    take = rate_of(scripts, keys, slow)
    assert await take() == (0, slow)
    # These are more than are kept.
    for number in range(1_000, 1_020):
        assert (await take(rate=f"{number} 1000"))[0] <= 1
    assert HOUR // 2 < (await take())[0] <= HOUR
    # It has a place that comes yet now, and the order of places holds.
    for number in range(1_000, 1_020):
        assert (await take(rate=f"{number} 1000"))[0] <= 1
    assert HOUR < (await take())[0] <= 2 * HOUR


async def test_a_caller_with_one_rate_too_many_asks_again_when_another_has_no_places_to_come(
    scripts: Scripts, keys: Keys
) -> None:
    rates = [f"1 {HOUR + number}" for number in range(63)] + ["1 300"]
    take = rate_of(scripts, keys, rates[0])
    for rate in rates:
        assert [(await take(rate=rate))[1] for _ in range(2)] == [rate] * 2
    assert await ask(scripts, "ZCARD", keys.rates()) == 1 + 64
    wait_ms, taken = await take(rate="1 30")
    assert (0 < wait_ms <= 600, taken) == (True, "")
    assert (await take())[1] == rates[0]
    await clock_passes(scripts, await clock_ms(scripts) + wait_ms)
    assert (await take(rate="1 30"))[1] == "1 30"


async def test_a_rate_is_not_forgotten_while_what_was_taken_by_it_is_not_there_again(
    scripts: Scripts, keys: Keys
) -> None:
    # Its last take was longer ago than its period, but the place of that has just come.
    now, slow = await clock_ms(scripts), f"2 {HOUR}"
    taken = b"r\0%b\0%d.000:%d" % (slow.encode(), now + HOUR - 1000, now - HOUR - 1000)
    for member in (b"r", taken):
        await ask(scripts, "ZADD", keys.rates(), now + HOUR - 1000, member)
    take = rate_of(scripts, keys, "1000 1000")
    for _ in range(3):
        await take()
    assert HOUR // 4 < (await take(rate=slow))[0] <= HOUR // 2
