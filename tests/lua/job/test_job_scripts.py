"""save_job, claim_job, start_job and end_job: together they are the life of an occurrence."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state.primitives.lease import HeldLease, Leases
from redis_state.scripts import Fence, Reply, ReplyCode, Scripts
from redis_state.transport.key_groups import JobKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok

SECOND = 1_000_000


class Job:
    """One job, called in short."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self.scripts = scripts
        self.keys = JobKeys(keys.job("j"), keys.jobs(), keys.jobs_of("s"), keys.jobs_due())
        self.held: dict[str, Fence] = {}

    async def save(self, next_us: int | None, every: int | None = None, **more: Any) -> Reply:
        requested: dict[str, Any] = {"write": f"w{next_us}", "enabled": True, **more}
        return await self.scripts.save_job(
            self.keys,
            {"document": b"{}"},
            ttl_ms=HOUR,
            job_id="j",
            next_us=next_us,
            interval_us=every,
            **requested,
        )

    async def claim(self, owner: str, up_to_us: int, lease_ms: int = HOUR) -> Reply:
        """Claim the job; keep the epoch, and return the reply without it."""
        reply = await self.scripts.claim_job(
            self.keys.job,
            self.keys.due,
            owner=owner,
            lease_ms=lease_ms,
            job_id="j",
            up_to_us=up_to_us,
        )
        if reply.word is not ReplyCode.OK:
            return reply
        epoch, *facts = reply.facts
        self.held[owner] = Fence(self.keys.job, epoch, owner)
        return ok(*facts)

    async def start(self, owner: str, lease_ms: int = HOUR) -> Reply:
        return await self.scripts.start_job(self.keys.job, self.held[owner], lease_ms=lease_ms)

    async def end(self, owner: str) -> Reply:
        return await self.scripts.end_job(self.keys, self.held[owner], job_id="j", ttl_ms=HOUR)

    async def due(self) -> int | None:
        score = await ask(self.scripts, "ZSCORE", self.keys.due, "j")
        return None if score is None else int(score)


async def test_an_occurrence_is_claimed_by_one_until_its_lease_runs_out(
    scripts: Scripts, keys: Keys
) -> None:
    job = Job(scripts, keys)
    assert await job.claim("a", 5) == no(ReplyCode.MISSING)
    await job.save(5)
    assert await job.claim("a", 4) == no(ReplyCode.DENIED)
    for _ in range(2):
        assert await job.claim("a", 5) == ok(b"{}", b"5", 0)
    held = await job.claim("b", 5)
    assert held.word is ReplyCode.HELD
    assert 0 < held.facts[0] <= HOUR
    assert await job.start("a", 0) == ok(1)
    assert await job.claim("b", 5) == ok(b"{}", b"5", 1)
    before = await fields(scripts, job.keys.job)
    lost = no(ReplyCode.LOST, job.held["b"].epoch)
    assert [await job.start("a"), await job.end("a")] == [lost] * 2
    # Nor does the epoch alone suffice, which a server whose history went back gives again.
    job.held["a"] = job.held["b"]._replace(owner="a")
    assert [await job.start("a"), await job.end("a")] == [lost] * 2
    assert await fields(scripts, job.keys.job) == before


async def test_a_claim_that_ran_out_is_its_schedulers_until_another_takes_it(
    scripts: Scripts, keys: Keys
) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    await job.claim("a", 5, 1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await job.start("a") == ok(1)
    assert (await job.claim("b", 5)).word is ReplyCode.HELD
    assert (await job.end("a")).word is ReplyCode.OK
    assert await job.start("a") == no(ReplyCode.LOST, job.held["a"].epoch)


async def test_of_many_claims_at_once_one_is_given(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    replies = await asyncio.gather(*(job.claim(str(n), 5) for n in range(50)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.HELD] * 49 + [ReplyCode.OK]


async def test_a_run_is_counted_once_for_each_claim(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    for n, owner in enumerate(("a", "b", "c")):
        assert await job.claim(owner, 5, 1) == ok(b"{}", b"5", n)
        for _ in range(2):
            assert await job.start(owner, 1) == ok(n + 1)
        await clock_passes(scripts, await clock_ms(scripts) + 1)
    # Another occurrence begins at none.
    await job.save(6)
    assert await job.claim("d", 6) == ok(b"{}", b"6", 0)


async def test_a_one_shot_job_is_due_no_more_when_it_ended(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    await job.claim("a", 5)
    for _ in range(2):
        assert await job.end("a") == ok(b"")
    assert await job.due() is None
    # The very save that planned it does nothing, a late one neither, another time does.
    assert await job.save(5) == ok(1)
    assert await job.save(5, write="late") == ok(2)
    assert await job.due() is None
    assert await job.claim("b", 9) == no(ReplyCode.DENIED)
    await job.save(4)
    assert await job.due() == 4


async def test_a_job_ends_into_its_next_moment_to_come(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    now_us = await clock_ms(scripts) * 1000
    first = now_us - 10_003 * SECOND
    await job.save(first, 10 * SECOND)
    await job.claim("a", now_us)
    (due,) = (await job.end("a")).facts
    assert (int(due) - first) % (10 * SECOND) == 0
    assert now_us < int(due) <= await clock_ms(scripts) * 1000 + 10 * SECOND
    # A view of before, of whichever moment, does not bring one back that was fired.
    await job.save(first - 10 * SECOND, 10 * SECOND, write="old")
    after = await job.due()
    assert after is not None
    assert after >= int(due)


async def test_what_the_claimer_asked_for_is_over_too(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    far = await clock_ms(scripts) * 1000 + 7200 * SECOND
    await job.save(far - 25 * SECOND, 10 * SECOND)
    await job.claim("a", far)
    assert await job.end("a") == ok(b"%d" % (far + 5 * SECOND))


async def test_a_plan_made_meanwhile_stands(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    await job.claim("a", 5)
    await job.save(9)
    assert (await job.claim("b", 9)).word is ReplyCode.HELD
    assert await job.end("a") == ok(b"9")
    assert await job.claim("b", 9) == ok(b"{}", b"9", 0)


async def test_a_disabled_job_is_not_due_however_it_ends(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5, SECOND)
    await job.claim("a", 5)
    await job.save(5, SECOND, write="off", enabled=False)
    assert await job.due() is None
    assert (await job.end("a")).word is ReplyCode.OK
    assert await job.due() is None
    assert await job.claim("b", 1 << 52) == no(ReplyCode.DENIED)


async def test_a_job_and_its_places_live_beyond_its_next_occurrence(
    scripts: Scripts, keys: Keys
) -> None:
    job = Job(scripts, keys)
    in_a_day = await clock_ms(scripts) * 1000 + 86_400 * SECOND
    await job.save(in_a_day)
    left = await lives(scripts, job.keys.job, job.keys.jobs, job.keys.jobs_of, job.keys.due)
    assert all(24 * HOUR < life <= 25 * HOUR for life in left)
    await job.save(5, write="sooner")
    assert 0 < (await lives(scripts, job.keys.job))[0] <= HOUR
    assert "owner" not in await fields(scripts, job.keys.job)


async def test_a_claim_neither_shortens_nor_prolongs_the_life_of_its_job(
    scripts: Scripts, keys: Keys
) -> None:
    job = Job(scripts, keys)
    in_a_day = await clock_ms(scripts) * 1000 + 86_400 * SECOND
    await job.save(in_a_day)
    before = await ask(scripts, "PEXPIRETIME", job.keys.job)
    await job.claim("a", in_a_day)
    await job.start("a")
    held = HeldLease(job.keys.job, "a", job.held["a"].epoch)
    await Leases(scripts, keep_ms=None).renew(held, duration_ms=2 * HOUR)
    assert await ask(scripts, "PEXPIRETIME", job.keys.job) == before
    assert HOUR < (await job.claim("b", in_a_day)).facts[0] <= 2 * HOUR


async def test_a_place_without_a_job_is_taken_out(scripts: Scripts, keys: Keys) -> None:
    job = Job(scripts, keys)
    await job.save(5)
    await ask(scripts, "DEL", job.keys.job)
    assert await job.claim("a", 5) == no(ReplyCode.MISSING)
    assert await job.due() is None
