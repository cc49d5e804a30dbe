from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a_rows import version_keys, write
from tests.support.scripts import HOUR, clock_ms, clock_passes, no


async def test_what_is_not_there_is_missing(scripts: Scripts, keys: Keys) -> None:
    assert await scripts.read_a2a_version(version_keys(keys)) == no(ReplyCode.MISSING)


async def test_a_task_is_read_with_its_owners_time(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    written = await write(scripts, task)
    reply = await scripts.read_a2a_version(task)
    version, at, state, phase, owner, epoch, left_ms, body, announce = reply.facts
    assert [version, at] == written.facts[:2]
    assert (state, phase, owner, epoch, body) == (
        *(b"2", b"o", b"me"),
        written.facts[2],
        b"body",
    )
    assert 0 < left_ms <= HOUR
    assert announce == 0


async def test_an_end_that_is_to_be_announced_says_so_until_it_is_deleted(
    scripts: Scripts, keys: Keys
) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="7", write="w2", phase="e", announce=True)
    assert (await scripts.read_a2a_version(task)).facts[8] == 0
    await write(scripts, task, rule="1", write="w3", phase="e", announce=True)
    assert (await scripts.read_a2a_version(task)).facts[8] == 1
    await scripts.drop_a2a_version(task, write="d", ttl_ms=HOUR)
    assert (await scripts.read_a2a_version(task)).facts[8] == 0


async def test_a_lease_that_ran_out_has_no_time_left(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    assert (await scripts.read_a2a_version(task)).facts[6] <= 0
