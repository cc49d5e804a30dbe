"""Jobs that wait for a worker with their version: where they wait, and who gets them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.flows import claim, end, limit, put
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import ensure_job, job_payload, move_job, queued_job

ONE, TWO = "v:h/1;", "v:h/2;"


async def park(
    scripts: Scripts,
    keys: Keys,
    task: str,
    claimed: bytes,
    *,
    lane: str = ONE,
    place: bytes = b"1000",
) -> int:
    """Park a claimed job; return whether it was claimed."""
    reply = await scripts.park_job(
        keys.queue("q"),
        payload=job_payload(keys, task),
        id=queued_job(keys, task).id.encode(),
        claimed=claimed,
        lane=lane,
        place=place,
        version=3,
        life_ms=HOUR,
    )
    return int(reply.facts[0])


async def parked(scripts: Scripts, keys: Keys, task: str, key: str = "", **more: Any) -> None:
    """Put a job, claim it and park it."""
    since_ms = round(float(more.get("place", b"1000")))
    await put(scripts, keys, task, key, since_ms=since_ms)
    assert await park(scripts, keys, task, (await claim(scripts, keys))[task], **more) == 1


async def served(
    scripts: Scripts, keys: Keys, *lanes: str, most: int = 100
) -> tuple[dict[str, bytes], int]:
    """Claim what is parked; return the claim of each task, and whether there is more."""
    reply = await scripts.claim_parked(
        keys.queue("q"), limit=most, life_ms=HOUR, lanes=lanes or (ONE,)
    )
    _, _, more, *rest = reply.facts
    names = [name.decode().rpartition("/")[2].partition(":")[0] for name in rest[::3]]
    return dict(zip(names, rest[2::3], strict=True)), more


async def test_a_parked_job_is_found_by_workers_of_its_lane_only(
    scripts: Scripts, keys: Keys
) -> None:
    await parked(scripts, keys, "t")
    assert await claim(scripts, keys) == {}
    assert await served(scripts, keys, TWO, "v:h/11;", "v:h/;", "v:g/1;") == ({}, 0)
    found, more = await served(scripts, keys, TWO, ONE)
    assert (list(found), more) == (["t"], 0)
    assert await served(scripts, keys) == ({}, 0)
    await end(scripts, keys, "t", found["t"])
    q = keys.queue("q")
    for key in (q.queue, q.claims, q.owners, q.keyed, q.turns, q.holders, job_payload(keys, "t")):
        assert await ask(scripts, "EXISTS", key) == 0


async def test_each_claim_tells_when_a_job_was_last_parked(scripts: Scripts, keys: Keys) -> None:
    async def claimed() -> bytes:
        reply = await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
        return bytes(reply.facts[2])

    assert await claimed() == b""
    await parked(scripts, keys, "a")
    first = await claimed()
    await parked(scripts, keys, "b")
    assert int(await claimed()) > int(first) > 0


async def test_parked_jobs_keep_their_places(scripts: Scripts, keys: Keys) -> None:
    for task, place in (("late", b"90000"), ("first", b"70000.5"), ("then", b"80000")):
        await parked(scripts, keys, task, place=place)
    assert list((await served(scripts, keys, most=1))[0]) == ["first"]
    # A point of priority, which changes while the job is parked.
    assert await move_job(scripts, keys, "late", earlier_ms=60_000) == ok(1)
    found, more = await served(scripts, keys, most=1)
    assert (list(found), more) == (["late"], 1)


@pytest.mark.parametrize("key", ["", "k:acme"])
async def test_a_parked_job_that_is_put_off_is_found_by_no_worker_until_then(
    scripts: Scripts, keys: Keys, key: str
) -> None:
    await parked(scripts, keys, "t", key)
    now, queue, job = await clock_ms(scripts), keys.queue("q"), queued_job(keys, "t")
    payload, name = job_payload(keys, "t"), job.id
    defer = partial(scripts.defer_job, queue, payload=payload, id=name, earlier_ms=0, life_ms=HOUR)
    # It is due already: no time of the past moves it.
    for sooner in (True, False):
        assert await defer(at_ms=now, sooner=sooner) == ok(0)
    assert await defer(at_ms=now + HOUR, sooner=False) == ok(1)
    assert await defer(at_ms=now + HOUR, sooner=False) == ok(0)
    assert await served(scripts, keys) == ({}, 0)
    assert await claim(scripts, keys) == {}
    assert await ask(scripts, "ZCARD", queue.keyed) == 0
    assert min(await lives(scripts, queue.queue)) > HOUR
    # Then each worker may claim it, and one without its version parks it again.
    assert await defer(at_ms=now, sooner=True) == ok(1)
    claimed = await claim(scripts, keys)
    holders = await ask(scripts, "ZRANGE", queue.holders, 0, -1)
    assert [member.partition(b"\0")[0] for member in holders] == ([key.encode()] if key else [])
    assert await park(scripts, keys, "t", claimed["t"]) == 1
    assert list((await served(scripts, keys))[0]) == ["t"]


async def test_a_parked_job_holds_no_permit_and_is_claimed_within_the_limits(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1", limit="2")
    await parked(scripts, keys, "a", "k:k")
    await put(scripts, keys, "b", "k:k")
    running = await claim(scripts, keys)
    assert list(running) == ["b"]
    assert await served(scripts, keys) == ({}, 1)
    await end(scripts, keys, "b", running["b"])
    found, _ = await served(scripts, keys)
    assert list(found) == ["a"]
    await put(scripts, keys, "c", "k:k")
    assert await claim(scripts, keys) == {}
    for task in ("d", "e"):
        await parked(scripts, keys, task)
    assert len((await served(scripts, keys))[0]) == 1
    assert await served(scripts, keys) == ({}, 1)


async def test_a_paused_queue_gives_nothing_that_is_parked(scripts: Scripts, keys: Keys) -> None:
    await parked(scripts, keys, "t")
    await limit(scripts, keys, paused="1")
    assert await served(scripts, keys) == ({}, 1)
    await limit(scripts, keys, paused="")
    assert await claim(scripts, keys) == {}
    assert list((await served(scripts, keys))[0]) == ["t"]


async def test_a_start_that_was_none_is_not_counted_in_the_rate(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, key_rate="1 3600000")
    await parked(scripts, keys, "a", "k:k")
    assert list((await served(scripts, keys))[0]) == ["a"]
    await put(scripts, keys, "b", "k:k")
    assert await claim(scripts, keys) == {}


async def test_keys_take_turns_and_one_at_its_limit_holds_up_no_other(
    scripts: Scripts, keys: Keys
) -> None:
    for task in ("a1", "a2", "a3", "b1", "b2", "c1"):
        await parked(scripts, keys, task, f"k:{task[0]}")
    await limit(scripts, keys, **{"limit_for_k:a": "1"})
    found: list[str] = []
    for _ in range(4):
        found += (await served(scripts, keys, most=1))[0]
    assert found == ["a1", "b1", "c1", "b2"]
    assert await served(scripts, keys) == ({}, 1)


async def test_a_claim_that_has_ended_parks_nothing(scripts: Scripts, keys: Keys) -> None:
    await put(scripts, keys, "t")
    claimed = (await claim(scripts, keys))["t"]
    assert await park(scripts, keys, "t", claimed) == 1
    assert await park(scripts, keys, "t", claimed) == 0
    await clock_passes(scripts, int(claimed))
    found, _ = await served(scripts, keys)
    # The repetition of an earlier call does not end the claim of the worker that has it now.
    assert await park(scripts, keys, "t", claimed) == 0
    await end(scripts, keys, "t", found["t"])
    assert await served(scripts, keys) == ({}, 0)


async def test_a_sweeper_leaves_a_parked_job_until_its_task_changes(
    scripts: Scripts, keys: Keys
) -> None:
    await parked(scripts, keys, "t")
    assert await ensure_job(scripts, keys, version="3", patience_ms=0) == "WAITS"
    assert await claim(scripts, keys) == {}
    # Another task of its name, or this one in another state: nobody knows what it waits for.
    assert await ensure_job(scripts, keys, version="4", patience_ms=0) == "QUEUED"
    assert await served(scripts, keys) == ({}, 0)
    assert list(await claim(scripts, keys)) == ["t"]


async def test_what_is_parked_of_a_task_that_has_ended_goes(scripts: Scripts, keys: Keys) -> None:
    for task in ("a", "b"):
        await parked(scripts, keys, task)
    name = queued_job(keys, "a").id.rpartition(":")[0]
    await scripts.drop_claims(keys.queue("q"), before_ms=0, tasks=[(name, None, None)])
    assert list((await served(scripts, keys))[0]) == ["b"]


async def test_a_cleared_queue_forgets_what_is_parked(scripts: Scripts, keys: Keys) -> None:
    await parked(scripts, keys, "t", "k:k")
    await scripts.clear_queue(keys.queue("q"), history=keys.queue_history())
    assert await served(scripts, keys) == ({}, 0)
    await parked(scripts, keys, "t")
    assert list((await served(scripts, keys))[0]) == ["t"]


async def test_what_is_parked_is_counted_by_lane_and_lives(scripts: Scripts, keys: Keys) -> None:
    for task, lane in (("a", ONE), ("b", TWO), ("c", TWO)):
        await parked(scripts, keys, task, "k:" + task if task == "b" else "", lane=lane)
    keyed = keys.queue("q").keyed
    flat = (await scripts.look_parked(keyed, lanes=9, limit=1)).facts
    assert flat[::3] == [ONE.encode(), TWO.encode()]
    assert flat[1::3] == [1, 2]
    assert [len(members) for members in flat[2::3]] == [1, 1]
    assert len((await scripts.look_parked(keyed, lanes=1, limit=0)).facts) == 3
    q = keys.queue("q")
    assert min(await lives(scripts, keyed, q.owners, q.flow, job_payload(keys, "a"))) > 0


async def test_a_claim_of_parked_jobs_leaves_another_mark_and_no_limit(
    scripts: Scripts, keys: Keys
) -> None:
    async def claimed() -> tuple[int, bytes]:
        limited, mark, *_ = (
            await scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR)
        ).facts[1:]
        return limited, mark

    assert await claimed() == (0, b"")
    await parked(scripts, keys, "t")
    limited, mark = await claimed()
    assert (limited, bool(mark)) == (0, True)
    # A server whose history goes back to here says again what a worker had seen before it claimed.
    reply = await scripts.claim_parked(keys.queue("q"), limit=9, life_ms=HOUR, lanes=[ONE])
    assert len(reply.facts) == 6
    assert await claimed() == (0, reply.facts[1])
    assert reply.facts[1] != mark


async def test_a_look_passes_a_few_keys_that_may_not_start_and_the_next_one_goes_on(
    scripts: Scripts, keys: Keys
) -> None:
    await limit(scripts, keys, per_key="1")
    busy = [f"k:{number:02d}" for number in range(40)]
    for key in busy:
        await parked(scripts, keys, f"p{key[2:]}", key)
    await parked(scripts, keys, "free", "k:99")
    for key in busy:
        await put(scripts, keys, f"r{key[2:]}", key)
        assert len(await claim(scripts, keys)) == 1
    assert await served(scripts, keys) == ({}, 1)
    found, more = await served(scripts, keys)
    assert (list(found), more) == (["free"], 1)
