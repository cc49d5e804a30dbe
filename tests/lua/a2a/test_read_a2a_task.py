from __future__ import annotations

from typing import Any

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.key_groups import A2AKeys
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import a2a_keys, create, drop, write
from tests.support.scripts.replies import HOUR, clock_ms, clock_passes, no


async def fields_of(scripts: Scripts, task: A2AKeys) -> dict[bytes, Any]:
    flat = (await scripts.read_a2a_task(task)).facts[5]
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_what_is_not_there_is_missing(scripts: Scripts, keys: Keys) -> None:
    assert await scripts.read_a2a_task(a2a_keys(keys)) == no(ReplyCode.MISSING)


async def test_a_task_is_read_with_its_owners_time(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    version, at, epoch = (await write(scripts, task)).facts
    owner, epoch_read, left_ms, *_ = (await scripts.read_a2a_task(task)).facts
    assert (owner, epoch_read) == (b"me", epoch)
    assert 0 < left_ms <= HOUR
    found = await fields_of(scripts, task)
    assert (found[b"state"], found[b"phase"], found[b"body"]) == (b"2", b"o", b"body")
    assert [int(found[b"version"]), int(found[b"at"])] == [version, at]
    assert b"announce" not in found


async def test_a_task_without_an_owner_has_none(scripts: Scripts, keys: Keys) -> None:
    await create(scripts, a2a_keys(keys))
    assert (await scripts.read_a2a_task(a2a_keys(keys))).facts[:3] == [b"", 0, 0]


async def test_a_task_is_read_in_part(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    history = [b"h%d" % n for n in range(5)]
    await create(scripts, task, messages=history, parts=[b"a"])
    for messages, wanted in ((0, []), (2, history[3:]), (9, history), (-1, history)):
        found = await scripts.read_a2a_task(task, messages=messages)
        assert found.facts[3:5] == [wanted, []]
    assert (await scripts.read_a2a_task(task, whole=True)).facts[3:5] == [[], [b"a"]]


async def test_an_end_that_must_be_announced_says_so_until_it_is_deleted(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="7", write="w2", phase="e", announce=True)
    assert b"announce" not in await fields_of(scripts, task)
    await write(scripts, task, rule="1", write="w3", phase="e", announce=True)
    assert (await fields_of(scripts, task))[b"announce"] == b"1"
    await drop(scripts, task)
    assert b"announce" not in await fields_of(scripts, task)


async def test_a_lease_that_ran_out_has_no_time_left(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    assert (await scripts.read_a2a_task(task)).facts[2] <= 0
