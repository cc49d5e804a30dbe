from __future__ import annotations

import pytest

from redis_state.errors import CorruptState
from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no
from tests.support.scripts.tasks import epoch_of, make_task, start


def flat(reply: Reply) -> dict[bytes, bytes]:
    found: list[bytes] = reply.facts[1]
    return dict(zip(found[::2], found[1::2], strict=True))


async def test_one_worker_starts_a_pending_task(scripts: Scripts, keys: Keys) -> None:
    task, log = task_keys(keys), keys.updates("s")
    assert await start(scripts, keys, task) == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    for _ in range(2):
        reply = await start(scripts, keys, task)
        assert (reply.word, reply.facts[0]) == (ReplyCode.OK, await epoch_of(scripts, task.lease))
        assert flat(reply)[b"status"] == b"RUNNING"
        assert flat(reply)[b"attempts"] == b"1"
    assert (await start(scripts, keys, task, owner="two")).word is ReplyCode.HELD
    assert await rows_of(scripts, log) == [(1, "started-one")]
    left = await lives(scripts, task.task, task.tasks, task.lease, log.rows, log.ids)
    assert all(0 < life <= 2 * HOUR for life in left)


async def test_a_repeated_start_is_known_even_if_the_record_was_written_since(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await scripts.put_record(task.task, {"priority": b"5"}, write="other", ttl_ms=HOUR)
    again = await start(scripts, keys, task)
    assert (flat(again)[b"attempts"], flat(again)[b"priority"]) == (b"1", b"5")


async def test_a_running_task_whose_lease_ran_out_is_taken_over(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    first = await start(scripts, keys, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    reply = await start(scripts, keys, task, owner="two")
    assert reply.facts[0] > first.facts[0]
    assert flat(reply)[b"attempts"] == b"2"
    assert flat(reply)[b"crashes"] == b"1"
    assert [row for _, row in await rows_of(scripts, keys.updates("s"))] == [
        "started-one",
        "started-two",
    ]


async def test_a_holder_that_let_its_lease_run_out_is_counted_once(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    counts: list[bytes | None] = []
    for owner in ("one", "two", "two", "three"):
        reply = await start(scripts, keys, task, owner=owner, lease_ms=1)
        counts.append(flat(reply).get(b"crashes"))
        if owner != "two" or len(counts) == 3:
            await clock_passes(scripts, await clock_ms(scripts) + 1)
    # The second call of "two" is the first one repeated.
    assert counts == [None, b"1", b"1", b"2"]


async def test_a_holder_that_gave_its_lease_back_is_not_counted(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    first = await start(scripts, keys, task)
    await scripts.release_lease(task.lease, owner="one", epoch=first.facts[0])
    reply = await start(scripts, keys, task, owner="two")
    assert reply.facts[0] > first.facts[0]
    assert flat(reply).get(b"crashes") is None


async def test_a_task_of_a_later_format_is_not_started(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await ask(scripts, "HSET", task.task, "format", 2)
    before = await fields(scripts, task.task)
    assert await start(scripts, keys, task) == no(ReplyCode.DENIED, b"newer")
    assert await fields(scripts, task.task) == before
    assert await ask(scripts, "EXISTS", task.lease, keys.updates("s").ids) == 0
    assert (await start(scripts, keys, task, reads=2)).word is ReplyCode.OK


async def test_a_start_that_cannot_be_announced_leaves_nothing_behind(
    scripts: Scripts, keys: Keys
) -> None:
    task, log, steering = task_keys(keys), keys.updates("s"), keys.steering("s")
    await make_task(scripts, task, "PENDING")
    await ask(scripts, "HSET", task.task, "epoch", 5)
    await append(scripts, log, "a")
    before = await fields(scripts, task.task)
    for damaged in (log.rows, log.ids, steering.ids):
        await ask(scripts, "SET", damaged, "x", "PX", HOUR)
        with pytest.raises(CorruptState) as told:
            await start(scripts, keys, task)
        assert told.value.key == damaged
        assert await fields(scripts, task.task) == before
        assert await ask(scripts, "EXISTS", task.lease) == 0
        await ask(scripts, "DEL", damaged)
    assert (await start(scripts, keys, task)).word is ReplyCode.OK


async def test_the_epoch_that_a_record_remembers_is_below_that_of_its_start(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    known = await clock_ms(scripts) + HOUR
    await ask(scripts, "HSET", task.task, "epoch", known)
    assert (await start(scripts, keys, task)).facts[0] == known + 1


async def test_a_task_in_another_state_is_left_alone(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PAUSED")
    before = await fields(scripts, task.task)
    assert await start(scripts, keys, task) == no(ReplyCode.DENIED, b"PAUSED")
    assert await fields(scripts, task.task) == before
    assert await ask(scripts, "EXISTS", task.lease, keys.updates("s").ids) == 0
