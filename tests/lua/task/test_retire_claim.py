from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, no, ok
from tests.support.scripts.tasks import make_task, start


async def version_of(scripts: Scripts, task: str) -> int:
    return int(await ask(scripts, "HGET", task, "version"))


async def test_a_pending_task_is_not_started_under_a_claim_that_was_retired(
    scripts: Scripts, keys: Keys
) -> None:
    task, now = task_keys(keys), await clock_ms(scripts)
    assert await scripts.retire_claim(task, version=1, claimed=now) == ok(0)
    await make_task(scripts, task, "PENDING")
    version = await version_of(scripts, task.task)
    assert await scripts.retire_claim(task, version=version + 1, claimed=now) == ok(0)
    for _ in range(2):
        assert await scripts.retire_claim(task, version=version, claimed=now) == ok(1)
    assert await version_of(scripts, task.task) == version
    for claimed in (now - HOUR, now):
        refused = await start(scripts, keys, task, claimed=claimed)
        assert refused == no(ReplyCode.DENIED, b"PENDING")
    assert (await start(scripts, keys, task, claimed=now + 1)).word is ReplyCode.OK


async def test_a_mark_from_before_the_clock_was_set_back_refuses_no_start(
    scripts: Scripts, keys: Keys
) -> None:
    task, now = task_keys(keys), await clock_ms(scripts)
    await make_task(scripts, task, "PENDING")
    version = await version_of(scripts, task.task)
    assert await scripts.retire_claim(task, version=version, claimed=now + 2 * HOUR) == ok(1)
    assert (await start(scripts, keys, task, claimed=now)).word is ReplyCode.OK


async def test_a_run_whose_lease_ran_out_has_lost_it_and_counts_as_dead(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    epoch = int((await start(scripts, keys, task, lease_ms=1, owner="one")).facts[0])
    await clock_passes(scripts, await clock_ms(scripts) + 1)

    async def renew() -> ReplyCode:
        renewed = await scripts.renew_lease(
            task.lease, owner="one", epoch=epoch, duration_ms=1, keep_ms=HOUR
        )
        return renewed.word

    assert await renew() is ReplyCode.OK
    version = await version_of(scripts, task.task)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    for _ in range(2):
        assert await scripts.retire_claim(task, version=version, claimed=1) == ok(1)
    assert await renew() is ReplyCode.LOST
    later = await start(scripts, keys, task, owner="two")
    assert int(later.facts[0]) > epoch
    assert await ask(scripts, "HGET", task.task, "crashes") == b"1"
    version = await version_of(scripts, task.task)
    assert await scripts.retire_claim(task, version=version, claimed=1) == ok(0)


async def test_a_retired_run_does_not_begin_again_under_its_claim(
    scripts: Scripts, keys: Keys
) -> None:
    task, now = task_keys(keys), await clock_ms(scripts)
    await make_task(scripts, task, "PENDING")
    started = await start(scripts, keys, task, lease_ms=1, owner="one", claimed=now)
    assert started.word is ReplyCode.OK
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    version = await version_of(scripts, task.task)
    assert await scripts.retire_claim(task, version=version, claimed=now) == ok(1)
    # Its reply was lost, and it comes once more.
    refused = await start(scripts, keys, task, owner="one", claimed=now)
    assert refused == no(ReplyCode.DENIED, b"RUNNING")
    assert (await start(scripts, keys, task, owner="two", claimed=now + 1)).word is ReplyCode.OK


async def test_a_mark_only_grows(scripts: Scripts, keys: Keys) -> None:
    task, now = task_keys(keys), await clock_ms(scripts)
    await make_task(scripts, task, "PENDING")
    version = await version_of(scripts, task.task)
    for claimed in (now, 0):
        assert await scripts.retire_claim(task, version=version, claimed=claimed) == ok(1)
    assert (await start(scripts, keys, task, claimed=now)).word is ReplyCode.DENIED
