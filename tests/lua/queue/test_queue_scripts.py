from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state.scripts import EndedJob, EndedJobs, Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import ensure_job, job_payload, move_job, queued_job


async def put(scripts: Scripts, keys: Keys, task: str, **changes: Any) -> Reply:
    job = queued_job(keys, task, **changes)
    return await scripts.queue_job(keys.queue("q"), payload=f"arq:job:{job.id}", job=job)


async def claim(scripts: Scripts, keys: Keys, limit: int = 100) -> list[list[bytes]]:
    """Claim jobs; give each with its place and its claim."""
    reply = await scripts.claim_jobs(keys.queue("q"), limit=limit, life_ms=HOUR)
    _, _, _, *rest = reply.facts
    return [rest[at : at + 3] for at in range(0, len(rest), 3)]


async def end(
    scripts: Scripts, keys: Keys, task: str, claimed: bytes, again_ms: int | None = None
) -> Reply:
    name = queued_job(keys, task).id.encode()
    job = EndedJob(job_payload(keys, task), name, claimed, again_ms)
    return await scripts.end_jobs(keys.queue("q"), EndedJobs([job]), life_ms=HOUR)


async def waiting(scripts: Scripts, keys: Keys) -> list[str]:
    found: list[bytes] = await ask(scripts, "ZRANGE", keys.queue("q").queue, 0, -1)
    return [name.decode().removeprefix(f"{keys.jobs_tag}/s/") for name in found]


async def test_a_job_is_queued_once_and_lives_for_a_while(scripts: Scripts, keys: Keys) -> None:
    assert await put(scripts, keys, "t") == ok(1)
    assert await put(scripts, keys, "t") == ok(0)
    assert await waiting(scripts, keys) == ["t:0"]
    left = await lives(scripts, keys.queue("q").queue, job_payload(keys))
    assert all(0 < life <= HOUR for life in left)


async def test_priority_and_age_decide_on_the_place(scripts: Scripts, keys: Keys) -> None:
    now = await clock_ms(scripts)
    await put(scripts, keys, "new")
    await put(scripts, keys, "old", since_ms=now - 5_000)
    await put(scripts, keys, "urgent", earlier_ms=60_000)
    # A clock ahead is no reason to wait.
    await put(scripts, keys, "ahead", since_ms=now + HOUR)
    assert (await waiting(scripts, keys))[:2] == ["urgent:0", "old:0"]
    await clock_passes(scripts, await clock_ms(scripts))
    claimed = await claim(scripts, keys)
    # Half a microsecond is the mark of those that wait for longer.
    aged = {
        job.decode().rpartition("/")[2]
        for job, place, _ in claimed
        if round(float(place) * 2000) % 2
    }
    assert len(claimed) == 4
    assert aged == {"old:0", "ahead:0"}


@pytest.mark.parametrize("key", ["", "k"])
async def test_what_waits_for_longer_goes_before_what_came_in_its_millisecond(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    places, name = keys.queue("q"), queued_job(keys, "a").id
    await put(scripts, keys, "a", key=key)
    placed: bytes = (
        await ask(scripts, "ZSCORE", places.queue, name)
        or (await ask(scripts, "HGET", places.owners, name)).partition(b"\0")[2]
    )
    # By its id it would be the last.
    # A place is a millisecond early.
    await put(scripts, keys, "left", since_ms=int(float(placed)) + 1, key=key)
    claimed = [job.decode().rpartition("/")[2] for job, *_ in await claim(scripts, keys)]
    assert claimed == ["left:0", "a:0"]


@pytest.mark.parametrize("key", ["", "k"])
async def test_jobs_of_one_millisecond_are_claimed_in_the_order_in_which_they_came(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    # By their ids they would come the other way round. Many are sent at once, and share commands.
    names = [f"{number:03}" for number in reversed(range(300))]
    await asyncio.gather(*(put(scripts, keys, name, key=key) for name in names))
    claimed = await claim(scripts, keys, limit=len(names))
    assert [job.decode()[-5:-2] for job, *_ in claimed] == names


async def test_what_is_put_off_is_not_claimed_before(scripts: Scripts, keys: Keys) -> None:
    now = await clock_ms(scripts)
    # However urgent it is.
    await put(scripts, keys, "later", at_ms=now + HOUR, earlier_ms=2 * HOUR)
    await put(scripts, keys, "soon", at_ms=now + 400)
    assert await claim(scripts, keys) == []
    await clock_passes(scripts, now + 400)
    assert [job[0].decode()[-6:] for job in await claim(scripts, keys)] == ["soon:0"]
    (left,) = await lives(scripts, job_payload(keys, "later"))
    assert left > HOUR
    looked = await scripts.look_queue(keys.queue("q"), most=9, most_keys=9)
    assert looked.facts[1:] == [0, 1, 1, [], []]


async def test_each_job_is_claimed_once(scripts: Scripts, keys: Keys) -> None:
    for number in range(50):
        await put(scripts, keys, f"t{number}")
    found = await asyncio.gather(*(claim(scripts, keys, 7) for _ in range(10)))
    names = [job[0] for jobs in found for job in jobs]
    assert (len(names), len(set(names))) == (50, 50)
    assert await waiting(scripts, keys) == []
    assert (await scripts.look_queue(keys.queue("q"), most=9, most_keys=9)).facts[1:4] == [0, 0, 50]
    assert all(0 < life <= HOUR for life in await lives(scripts, keys.queue("q").claims))


async def test_an_end_is_of_one_claim_and_leaves_a_later_one(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "t")
    ((_, _, first),) = await claim(scripts, keys)
    # The task waited again before the worker of its first run has ended that.
    await put(scripts, keys, "t", runs=1)
    ((_, _, second),) = await claim(scripts, keys)
    assert int(second) > int(first)
    assert await end(scripts, keys, "t", first) == ok(0)
    assert await ask(scripts, "ZCARD", keys.queue("q").claims) == 1
    assert await ask(scripts, "EXISTS", job_payload(keys)) == 0
    assert await ask(scripts, "EXISTS", job_payload(keys, runs=1)) == 1
    for ended in (1, 0):
        assert await end(scripts, keys, "t", second) == ok(ended)


async def test_a_job_can_be_put_off_at_its_end(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "t")
    ((_, _, claimed),) = await claim(scripts, keys)
    for ended in (1, 0):
        assert await end(scripts, keys, "t", claimed, HOUR) == ok(ended)
    assert await waiting(scripts, keys) == ["t:0"]
    assert await claim(scripts, keys) == []
    assert await ask(scripts, "EXISTS", job_payload(keys)) == 1


async def test_the_states_of_a_job_that_must_be_there(scripts: Scripts, keys: Keys) -> None:
    assert await ensure_job(scripts, keys) == "QUEUED"
    assert await ensure_job(scripts, keys) == "WAITS"
    await ask(scripts, "DEL", job_payload(keys))
    assert await ensure_job(scripts, keys) == "QUEUED"
    await claim(scripts, keys)
    assert await ensure_job(scripts, keys) == "CLAIMED"
    assert await ensure_job(scripts, keys, patience_ms=0) == "RELEASED"
    assert await ensure_job(scripts, keys) == "WAITS"
    assert await waiting(scripts, keys) == ["t:0"]


async def test_what_a_dead_run_has_claimed_is_no_reason_to_wait(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "t")
    await claim(scripts, keys)
    assert await ensure_job(scripts, keys, runs=1, orphan=True, patience_ms=0) == "QUEUED"
    assert await waiting(scripts, keys) == ["t:1"]
    assert await ask(scripts, "ZCARD", keys.queue("q").claims) == 0


async def test_the_claim_of_the_run_that_follows_a_dead_one_keeps_its_permit(
    scripts: Scripts, keys: Keys
) -> None:
    """A second sweeper that saw the dead run comes after the takeover, before its run began."""
    await put(scripts, keys, "t")
    await claim(scripts, keys)
    assert await ensure_job(scripts, keys, runs=1, orphan=True, patience_ms=0) == "QUEUED"
    ((name, _, _),) = await claim(scripts, keys)
    assert await ensure_job(scripts, keys, runs=1, orphan=True) == "CLAIMED"
    assert await waiting(scripts, keys) == []
    assert await ask(scripts, "ZCARD", keys.queue("q").claims) == 1
    assert name.endswith(b"t:1")


async def test_a_job_that_was_put_off_under_its_earlier_name_is_good_enough(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "t")
    assert await ensure_job(scripts, keys, runs=1) == "WAITS"
    # Not for a task whose worker is dead: arq's own would take it for one in progress.
    assert await ensure_job(scripts, keys, runs=1, orphan=True) == "QUEUED"
    assert await waiting(scripts, keys) == ["t:1"]
    assert await ask(scripts, "EXISTS", job_payload(keys)) == 0


@pytest.mark.parametrize("change", ["picked again", "another version", "clock set back"])
async def test_what_arqs_worker_picked_is_released_when_it_is_found_twice(
    scripts: Scripts, keys: Keys, change: str
) -> None:
    await put(scripts, keys, "t")
    picked = f"arq:in-progress:{queued_job(keys).id}"
    await ask(scripts, "SET", picked, "1", "PX", HOUR)
    assert await ensure_job(scripts, keys, patience_ms=0) == "CLAIMED"
    assert await ask(scripts, "PTTL", picked) > 0
    version = "1"
    if change == "picked again":
        await ask(scripts, "SET", picked, "1", "PX", HOUR)
    elif change == "clock set back":
        await ask(scripts, "SET", picked, f"1 {await clock_ms(scripts) + HOUR}", "PX", HOUR)
    else:
        version = "2"
    assert await ensure_job(scripts, keys, patience_ms=0, version=version) == "CLAIMED"
    assert await ensure_job(scripts, keys, patience_ms=HOUR, version=version) == "CLAIMED"
    assert await ensure_job(scripts, keys, patience_ms=0, version=version) == "RELEASED"
    assert await ask(scripts, "EXISTS", picked) == 0
    assert await ensure_job(scripts, keys) == "WAITS"


async def test_claims_are_listed_once_they_are_old_enough(scripts: Scripts, keys: Keys) -> None:
    claims = keys.queue("q").claims
    for task in ("a", "b"):
        await put(scripts, keys, task)
        await clock_passes(scripts, await clock_ms(scripts))
        await claim(scripts, keys)

    async def listed(after: int, patience_ms: int, ahead: int = 0) -> list[Any]:
        reply = await scripts.list_claims(
            claims, after=after, ahead=ahead, patience_ms=patience_ms, limit=1
        )
        return reply.facts[1:]

    assert await listed(0, HOUR) == []
    name, first = await listed(0, 0)
    assert name.decode() == f"{keys.jobs_tag}/s/a"
    name, second = await listed(int(first), 0)
    assert name.decode() == f"{keys.jobs_tag}/s/b"
    assert await listed(int(second), 0) == []
    # The clock is set back: how old they are is not known.
    for task in ("b", "a"):
        await ask(scripts, "ZINCRBY", claims, HOUR, f"{keys.jobs_tag}/s/{task}")
    name, later = await listed(0, HOUR)
    assert name.decode() == f"{keys.jobs_tag}/s/a"
    assert int(later) == int(first) + HOUR
    name, latest = await listed(0, HOUR, int(later))
    assert name.decode() == f"{keys.jobs_tag}/s/b"
    assert await listed(0, HOUR, int(latest)) == []


async def test_a_job_is_moved_while_it_waits(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "a")
    await clock_passes(scripts, await clock_ms(scripts))
    await put(scripts, keys, "b")
    # A repetition finds it moved.
    for moved in (1, 0):
        assert await move_job(scripts, keys, "b", earlier_ms=HOUR) == ok(moved)
        assert await waiting(scripts, keys) == ["b:0", "a:0"]
    assert await move_job(scripts, keys, "c", earlier_ms=HOUR) == ok(0)
    assert await move_job(scripts, keys, "b", earlier_ms=0) == ok(1)
    assert await waiting(scripts, keys) == ["a:0", "b:0"]
    # One that is put off is not due any earlier for it.
    await put(scripts, keys, "later", at_ms=await clock_ms(scripts) + HOUR)
    assert await move_job(scripts, keys, "later", earlier_ms=2 * HOUR) == ok(0)
    assert await waiting(scripts, keys) == ["a:0", "b:0", "later:0"]


async def test_a_job_that_is_moved_there_and_back_has_its_place(
    scripts: Scripts, keys: Keys
) -> None:
    queue = keys.queue("q").queue
    await put(scripts, keys, "t", earlier_ms=2 * 60_000)
    before = await ask(scripts, "ZRANGE", queue, 0, -1, "WITHSCORES")
    for earlier_ms in (60_000, 0, HOUR, 2 * 60_000):
        assert await move_job(scripts, keys, earlier_ms=earlier_ms) == ok(1)
    after = await ask(scripts, "ZRANGE", queue, 0, -1, "WITHSCORES")
    assert (after[0], round(float(after[1]), 2)) == (before[0], round(float(before[1]), 2))


async def test_a_job_that_was_handed_off_is_moved_under_the_id_that_it_kept(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "before")
    await clock_passes(scripts, await clock_ms(scripts))
    await put(scripts, keys, "t")
    assert await ensure_job(scripts, keys, runs=1, earlier_ms=HOUR) == "MISPLACED"
    assert await move_job(scripts, keys, runs=1, earlier_ms=HOUR) == ok(1)
    assert await ensure_job(scripts, keys, runs=1, earlier_ms=HOUR) == "WAITS"
    assert await waiting(scripts, keys) == ["t:0", "before:0"]


async def test_a_job_of_an_earlier_version_is_placed_by_when_its_task_was_made(
    scripts: Scripts, keys: Keys
) -> None:
    now, payload = await clock_ms(scripts), job_payload(keys)
    await put(scripts, keys, "t", since_ms=now - HOUR)
    written = queued_job(keys).payload
    await ask(scripts, "SET", payload, written, "PX", HOUR)
    # It does not say since when it waits: a sweeper leaves it there.
    assert await ensure_job(scripts, keys, earlier_ms=60_000) == "WAITS"
    assert await move_job(scripts, keys, earlier_ms=60_000, since_ms=now - HOUR) == ok(1)
    assert await move_job(scripts, keys, earlier_ms=60_000, since_ms=now - HOUR) == ok(0)
    assert await ask(scripts, "GET", payload) == written


async def test_what_stands_for_a_payload_and_is_none_is_left_where_it_is(
    scripts: Scripts, keys: Keys
) -> None:
    await put(scripts, keys, "t")
    await ask(scripts, "DEL", job_payload(keys))
    await ask(scripts, "RPUSH", job_payload(keys), "x")
    await ask(scripts, "PEXPIRE", job_payload(keys), HOUR)
    assert await ensure_job(scripts, keys, earlier_ms=HOUR) == "WAITS"
    assert await move_job(scripts, keys, earlier_ms=HOUR, since_ms=1) == ok(0)


async def test_the_only_job_of_a_list_is_moved_and_the_list_still_has_a_lifetime(
    scripts: Scripts, keys: Keys
) -> None:
    now, queue = await clock_ms(scripts), keys.queue("q")
    await put(scripts, keys, "t", key="k:acme")
    for earlier_ms in (HOUR, 2 * HOUR, 0):
        assert await move_job(scripts, keys, earlier_ms=earlier_ms) == ok(1)
        assert (await lives(scripts, queue.keyed))[0] > HOUR // 2
    # It goes forward, and a later place leaves it there.
    for since_ms in (now - HOUR, now):
        await put(scripts, keys, "t", key="k:acme", since_ms=since_ms)
        assert (await lives(scripts, queue.keyed))[0] > HOUR // 2
    claimed = await scripts.claim_jobs(queue, limit=1, life_ms=HOUR)
    assert int(float(claimed.facts[4])) == now - HOUR - 2
