"""Limits of a queue: running tasks, tasks of one key, turns."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.flows import claim, claim_places, end, end_at, limit, put
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import ensure_job, job_payload, move_job, queued_job


async def test_no_more_run_than_the_queue_allows(scripts: Scripts, keys: Keys) -> None:
    for number in range(5):
        await put(scripts, keys, f"t{number}", "k" if number % 2 else "")
    await limit(scripts, keys, limit="2")
    first = await claim(scripts, keys)
    assert len(first) == 2
    assert await claim(scripts, keys) == {}
    await end(scripts, keys, *first.popitem())
    assert len(await claim(scripts, keys)) == 1
    await limit(scripts, keys, limit="")
    assert len(await claim(scripts, keys)) == 2


async def test_a_paused_queue_gives_nothing(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "t")
    await limit(scripts, keys, paused="1")
    assert await claim(scripts, keys) == {}
    await limit(scripts, keys, paused="")
    assert list(await claim(scripts, keys)) == ["t"]


async def test_keys_take_turns_and_none_has_more_than_its_limit(
    scripts: Scripts, keys: Keys
) -> None:
    for key, many in (("a", 20), ("b", 2), ("c", 1)):
        # Jobs of the same millisecond have the order of their names.
        for number in range(many):
            await put(scripts, keys, f"{key}{number:02}", key)
    await limit(scripts, keys, per_key="2")
    claimed = await claim(scripts, keys, 3)
    assert list(claimed) == ["a00", "b00", "c00"]
    claimed |= await claim(scripts, keys)
    assert Counter(task[0] for task in claimed) == {"a": 2, "b": 2, "c": 1}
    assert await claim(scripts, keys) == {}
    await end(scripts, keys, "b00", claimed["b00"])
    assert await claim(scripts, keys) == {}
    await end(scripts, keys, "a00", claimed["a00"])
    assert list(await claim(scripts, keys)) == ["a02"]
    # One key may have more than the others, at once.
    await limit(scripts, keys, limit_for_a="4")
    assert list(await claim(scripts, keys)) == ["a03", "a04"]
    await limit(scripts, keys, limit_for_a="", per_key="")
    assert len(await claim(scripts, keys)) == 15


async def test_jobs_with_and_without_a_key_take_turns(scripts: Scripts, keys: Keys) -> None:
    for number in range(3):
        await put(scripts, keys, f"p{number}")
        await put(scripts, keys, f"k{number}", "k")
    await clock_passes(scripts, await clock_ms(scripts))
    assert [task[0] for task in await claim(scripts, keys, 4)] == ["p", "k", "p", "k"]


async def test_they_take_turns_too_if_each_call_claims_one(scripts: Scripts, keys: Keys) -> None:
    for number in range(3):
        await put(scripts, keys, f"p{number}")
        await put(scripts, keys, f"k{number}", "k")
    await clock_passes(scripts, await clock_ms(scripts))
    claimed = [task[0] for _ in range(4) for task in await claim(scripts, keys, 1)]
    assert claimed == ["p", "k", "p", "k"]
    # A call for two, and then one for one.
    assert [task[0] for task in await claim(scripts, keys, 2)] == ["p", "k"]
    assert all(life > 0 for life in await lives(scripts, keys.queue("q").flow))


async def test_a_session_in_turn_has_one_at_a_time(scripts: Scripts, keys: Keys) -> None:
    for number in range(3):
        await put(scripts, keys, f"t{number}", "1:s")
    for number in range(3):
        (claimed,) = (await claim(scripts, keys)).items()
        assert claimed[0] == f"t{number}"
        await end(scripts, keys, *claimed)


async def test_a_task_that_is_put_off_goes_before_the_next_one_of_its_schedules_backfills(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("a", "b"):
        await put(scripts, keys, task, "b:s")
    (given,) = await claim_places(scripts, keys)
    await end_at(scripts, keys, *given, again_ms=HOUR)
    assert await claim(scripts, keys) == {}
    await ask(scripts, "ZADD", keys.queue("q").waits, "XX", await clock_ms(scripts), "b:s")
    (again,) = await claim_places(scripts, keys)
    assert again[:2] == given[:2]


async def test_a_task_in_turn_that_is_put_off_goes_before_the_next_one_of_its_session(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("a", "b"):
        await put(scripts, keys, task, "1:s")
    (given,) = await claim_places(scripts, keys)
    await end_at(scripts, keys, *given, again_ms=HOUR)
    assert await claim(scripts, keys) == {}
    # Other sessions do not wait.
    await put(scripts, keys, "other", "1:o")
    assert list(await claim(scripts, keys)) == ["other"]
    # The hour passes.
    await ask(scripts, "ZADD", keys.queue("q").waits, "XX", await clock_ms(scripts), "1:s")
    (again,) = await claim_places(scripts, keys)
    assert again[:2] == given[:2]
    # A new one of the session ends the wait, and nothing else.
    await end_at(scripts, keys, *again, again_ms=HOUR)
    await put(scripts, keys, "c", "1:s")
    (last,) = await claim_places(scripts, keys)
    assert last[:2] == given[:2]
    await end(scripts, keys, "a", last[2])
    assert list(await claim(scripts, keys)) == ["b"]
    assert all(life > 0 for life in await lives(scripts, keys.queue("q").waits))


async def test_a_task_in_turn_that_is_handed_off_goes_first_in_a_full_queue_too(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("p", "q"):
        await put(scripts, keys, task, earlier_ms=HOUR)
    for task in ("a", "b"):
        await put(scripts, keys, task, "1:s")
    await clock_passes(scripts, await clock_ms(scripts))
    plain, given = await claim_places(scripts, keys, 2)
    assert [plain[0], given[0]] == ["p", "a"]
    await put(scripts, keys, "r", earlier_ms=HOUR)
    await end_at(scripts, keys, *given, again_ms=0)
    # Two without a key are due before it.
    assert sorted(await claim(scripts, keys, 2)) == ["a", "q"]


async def test_a_session_that_waits_by_a_clock_that_was_set_back_takes_its_turn(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "a", "1:s")
    (given,) = await claim_places(scripts, keys)
    await end_at(scripts, keys, *given, again_ms=24 * HOUR)
    assert await claim(scripts, keys) == {}
    assert await ensure_job(scripts, keys, "a", key="1:s") == "WAITS"
    assert list(await claim(scripts, keys)) == ["a"]


async def test_a_worker_whose_claim_was_ended_by_others_puts_no_second_job_beside_its_key(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    for task in ("a", "b"):
        await put(scripts, keys, task, "k:tenant")
    (given,) = await claim_places(scripts, keys)
    # The worker was cut off for long, so a sweeper has queued the job again. Now it hands it off.
    retired = int(given[2])
    ensured = await ensure_job(scripts, keys, "a", key="k:tenant", patience_ms=0, retired=retired)
    assert ensured == "RELEASED"
    await end_at(scripts, keys, *given, again_ms=0)
    await clock_passes(scripts, await clock_ms(scripts))
    assert list(await claim(scripts, keys)) == ["b"]
    # Nor does its end take away what the queued job says.
    await end(scripts, keys, "a", given[2])
    assert await ask(scripts, "EXISTS", job_payload(keys, "a")) == 1


async def test_a_repeated_hand_off_of_a_task_in_turn_queues_it_once(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("a", "b"):
        await put(scripts, keys, task, "1:s")
    (given,) = await claim_places(scripts, keys)
    for _ in range(2):
        await end_at(scripts, keys, *given, again_ms=0)
    await clock_passes(scripts, await clock_ms(scripts))
    assert [job[:2] for job in await claim_places(scripts, keys)] == [given[:2]]


async def test_a_claim_that_a_run_has_left_does_not_keep_the_next_run_of_its_task_waiting(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "a", "1:s")
    ((_, claimed),) = (await claim(scripts, keys)).items()
    # Its task was paused and resumed. Its worker died before it ended the claim.
    job = queued_job(keys, "a", runs=1, key="1:s")
    await scripts.queue_job(keys.queue("q"), payload=f"arq:job:{job.id}", job=job)
    assert await claim(scripts, keys) == {}
    # At first the worker may be about to end it, and then its right to run goes first.
    assert await ensure_job(scripts, keys, "a", key="1:s", runs=1) == "WAITS"
    assert await ensure_job(scripts, keys, "a", key="1:s", runs=1, patience_ms=0) == "HELD"
    assert await claim(scripts, keys) == {}
    ended = await ensure_job(
        scripts, keys, "a", key="1:s", runs=1, patience_ms=0, retired=int(claimed)
    )
    assert ended == "WAITS"
    assert list(await claim(scripts, keys)) == ["a"]


async def test_a_key_is_put_off_and_keeps_its_limit(scripts: Scripts, keys: Keys) -> None:
    await limit(scripts, keys, per_key="1")
    now = await clock_ms(scripts)
    await put(scripts, keys, "now", "k")
    await put(scripts, keys, "later", "k", at_ms=now + 30)
    ((task, claimed),) = (await claim(scripts, keys)).items()
    assert task == "now"
    await clock_passes(scripts, now + 30)
    assert await claim(scripts, keys) == {}
    # Put off at its end, it waits behind the other.
    await end(scripts, keys, task, claimed, again_ms=0)
    await clock_passes(scripts, await clock_ms(scripts))
    ((task, claimed),) = (await claim(scripts, keys)).items()
    assert task == "later"
    await end(scripts, keys, task, claimed)
    assert list(await claim(scripts, keys)) == ["now"]


async def test_delayed_jobs_of_a_full_key_do_not_hold_up_what_is_behind_them(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "runs", "tenant")
    assert list(await claim(scripts, keys)) == ["runs"]
    due = await clock_ms(scripts)
    tenants = [f"t{number:03}" for number in range(300)]
    for task in tenants:
        await put(scripts, keys, task, "tenant", at_ms=due + HOUR)
    for task, key in (("plain", ""), ("late", "other")):
        await put(scripts, keys, task, key, at_ms=due + HOUR)
    # An hour passes.
    moved = [part for task in tenants for part in (due - 1, queued_job(keys, task).id)]
    moved += [part for task in ("plain", "late") for part in (due, queued_job(keys, task).id)]
    await ask(scripts, "ZADD", keys.queue("q").queue, "XX", *moved)
    # One call moves many of them, and not all of a long line.
    assert await claim(scripts, keys, 1) == {}
    assert 250 <= await ask(scripts, "ZCARD", keys.queue("q").keyed) < 300
    found = [await claim(scripts, keys, 1) for _ in range(3)]
    assert sorted(task for each in found for task in each) == ["late", "plain"]
    assert await ask(scripts, "ZCARD", keys.queue("q").keyed) == 300


async def test_the_permit_of_a_dead_worker_is_free_once_its_task_is_queued_again_or_has_ended(
    scripts: Scripts, keys: Keys
) -> None:
    queue = keys.queue("q")
    await limit(scripts, keys, per_key="1")
    for task in ("a", "b"):
        await put(scripts, keys, task, "k")
    claimed = await claim(scripts, keys)
    assert list(claimed) == ["a"]
    await clock_passes(scripts, await clock_ms(scripts))
    ensure = partial(ensure_job, scripts, keys, "a", key="k", runs=1, orphan=True, patience_ms=0)
    # Its run may go on until its claim is retired.
    since = int(claimed["a"])
    assert await ensure(retired=since - 1) == "HELD"
    assert await claim(scripts, keys) == {}
    assert await ensure(retired=since) == "QUEUED"
    assert list(await claim(scripts, keys)) == ["b"]
    now = await clock_ms(scripts)
    name = queued_job(keys, "b").id.rpartition(":")[0]
    # A claim that was made after the inspection stays.
    gone = [(name, None, None)]
    assert await scripts.drop_claims(queue, before_ms=now - HOUR, tasks=gone) == ok(0)
    assert await scripts.drop_claims(queue, before_ms=now, tasks=gone) == ok(1)
    assert await scripts.drop_claims(queue, before_ms=now, tasks=gone) == ok(0)
    assert list(await claim(scripts, keys)) == ["a"]


async def test_a_claim_of_the_same_task_under_another_key_gives_the_first_permit_back(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "t", "k1")
    first = await claim(scripts, keys)
    await put(scripts, keys, "other", "k1")
    assert await claim(scripts, keys) == {}
    # Its record was deleted, and another task has its id.
    await put(scripts, keys, "t", "k2")
    second = await claim(scripts, keys)
    assert list(second) == ["t", "other"]
    # The first worker's end is not that of the second claim.
    await end(scripts, keys, "t", first["t"])
    await put(scripts, keys, "third", "k2")
    assert await claim(scripts, keys) == {}
    await end(scripts, keys, "t", second["t"])
    assert list(await claim(scripts, keys)) == ["third"]


async def test_a_claim_of_the_same_task_without_a_key_gives_its_permit_back(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    await put(scripts, keys, "t", "k")
    await claim(scripts, keys)
    await put(scripts, keys, "other", "k")
    await put(scripts, keys, "t")
    assert list(await claim(scripts, keys)) == ["t", "other"]


async def test_a_job_that_is_put_off_takes_its_key_along_when_it_goes(
    scripts: Scripts, keys: Keys
) -> None:
    queue, later = keys.queue("q"), await clock_ms(scripts) + HOUR
    first, second = queued_job(keys, "a").id, queued_job(keys, "b").id
    for task in ("a", "b"):
        await put(scripts, keys, task, "k", at_ms=later)
    known = await ask(scripts, "HKEYS", queue.owners)
    assert sorted(known) == [f"later:{job}".encode() for job in (first, second)]
    assert await scripts.withdraw_jobs(queue, line="1:s", jobs=[first, "unknown"]) == ok(1)
    # A sweeper queues the next run of a task whose worker is dead.
    job = queued_job(keys, "b", runs=1)
    ensured = await scripts.ensure_job(
        queue,
        payload=job_payload(keys, "b", runs=1),
        picked=f"arq:in-progress:{job.id}",
        earlier_payload=job_payload(keys, "b"),
        job=job,
        earlier=second,
        orphan=True,
        version="1",
        patience_ms=0,
    )
    assert ensured.text(0) == "QUEUED"
    assert await ask(scripts, "HKEYS", queue.owners) == []
    assert await ask(scripts, "ZRANGE", queue.queue, 0, -1) == [job.id.encode()]


async def test_a_job_with_a_key_is_moved_and_cleared(scripts: Scripts, keys: Keys) -> None:
    queue = keys.queue("q")
    for task in ("a", "b", "c"):
        await put(scripts, keys, task, "k")
        await clock_passes(scripts, await clock_ms(scripts))
    assert await move_job(scripts, keys, "c", earlier_ms=HOUR) == ok(1)
    assert list(await claim(scripts, keys, 1)) == ["c"]
    await scripts.clear_queue(queue, history=keys.queue_history())
    assert await claim(scripts, keys) == {}
    await put(scripts, keys, "a", "k")
    assert list(await claim(scripts, keys)) == ["a"]


async def test_whatever_is_done_in_whatever_order_no_limit_is_passed_and_nothing_is_lost(
    scripts: Scripts, keys: Keys
) -> None:
    random, held, waiting = Random(7), dict[str, bytes](), set[str]()
    limits = {"limit": 6, "per_key": 2}
    await limit(scripts, keys, limit="6", per_key="2")
    for number in range(300):
        match random.randrange(4):
            case 0 | 1:
                key = random.choice(["", "a", "b", "c", "1:s"])
                task = f"{key.replace(':', '-')}.{number}"
                await put(scripts, keys, task, key, earlier_ms=random.randrange(3))
                waiting.add(task)
            case 2 if held:
                task = random.choice(sorted(held))
                await end(scripts, keys, task, held.pop(task))
            case _:
                claimed = await claim(scripts, keys, random.randrange(1, 4))
                assert not set(claimed) - waiting
                waiting -= set(claimed)
                held |= claimed
        by_key = Counter(task.partition(".")[0] for task in held)
        assert len(held) <= limits["limit"]
        assert all(
            count <= (1 if key == "1-s" else limits["per_key"])
            for key, count in by_key.items()
            if key
        )
    while waiting:
        for task in list(held):
            await end(scripts, keys, task, held.pop(task))
        held = await claim(scripts, keys)
        assert held
        waiting -= set(held)


async def test_a_key_whose_turn_expired_takes_it_again_once_a_waiting_task_is_inspected(
    scripts: Scripts, keys: Keys
) -> None:
    for task, key in (("a", "1:s"), ("b", "k:tenant"), ("c", "b:s")):
        await put(scripts, keys, task, key)
    # No worker was there for longer than turns are kept.
    await ask(scripts, "UNLINK", keys.queue("q").turns)
    assert await claim(scripts, keys) == {}
    for task, key in (("a", "1:s"), ("b", "k:tenant"), ("c", "b:s")):
        assert await ensure_job(scripts, keys, task, key=key) == "WAITS"
    assert sorted(await claim(scripts, keys)) == ["a", "b", "c"]


async def test_a_permit_does_not_outlive_its_claim(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "a", "k:tenant")
    await claim(scripts, keys)
    claims, permits = await lives(scripts, keys.queue("q").claims, keys.queue("q").holders)
    assert 0 < permits <= claims <= HOUR


async def test_a_limit_and_a_pause_live_as_long_as_workers_look(
    scripts: Scripts, keys: Keys
) -> None:
    for settings in ({"limit": "2"}, {"limit": "", "paused": "1"}):
        await limit(scripts, keys, **settings)
        await ask(scripts, "PEXPIRE", keys.queue("q").flow, HOUR)
        await claim(scripts, keys)
        (life,) = await lives(scripts, keys.queue("q").flow)
        assert life > 24 * 365 * HOUR
