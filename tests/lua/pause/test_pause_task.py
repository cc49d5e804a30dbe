from __future__ import annotations

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys, token_key
from tests.support.scripts.logs import rows_of
from tests.support.scripts.pauses import decide, open_pause, pause
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok
from tests.support.scripts.tasks import epoch_of, make_task, mark_of, start


async def record(scripts: Scripts, task: TaskKeys, mark: bytes) -> Reply:
    return await scripts.record_entry(task, mark=mark, entry="step:late#1", value=b"1")


async def opened(scripts: Scripts, keys: Keys, *, ttl_ms: int = HOUR) -> tuple[TaskKeys, str]:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token, ttl_ms=ttl_ms)
    return task, token


async def test_a_running_task_waits_for_its_pause(scripts: Scripts, keys: Keys) -> None:
    task, token = await opened(scripts, keys, ttl_ms=10 * HOUR)
    for _ in range(2):
        assert await pause(scripts, keys, task, token) == ok(3)
    found = await fields(scripts, task.task)
    assert found["status"] == b"PAUSED"
    digest = token.rpartition(":")[2].encode()
    assert (found["pause_entry"], found["pause_token"]) == (b"pause:x#1", digest)
    # The record's write trims the list of tasks, and leaves the pauses in it.
    listed = await ask(scripts, "ZRANGE", task.tasks, 0, -1)
    assert listed == [b"\xff" + digest, task.task_id.encode()]
    assert (await fields(scripts, task.lease))["owner"] == b""
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert rows == ["started-one", f"opened-{token}", f"paused-{token}"]
    # It outlives the pause's deadline by its own life, with what belongs to it.
    kept = (task.task, task.tasks, task.journal)
    assert all(10.9 * HOUR < life <= 11 * HOUR for life in await lives(scripts, *kept))
    # Nobody holds it: it stays for what the run still writes.
    assert 0 < (await lives(scripts, task.lease))[0] <= 300_000
    assert await pause(scripts, keys, task, token_key(keys, "y")) == no(ReplyCode.DENIED, b"PAUSED")


async def test_a_waiting_task_keeps_nothing_of_earlier_deaths_and_children(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    # As a worker of an earlier version writes them.
    await ask(scripts, "HSET", task.task, "crashes", 0, "waits_for", "")
    assert await pause(scripts, keys, task, token) == ok(3)
    assert not {"crashes", "waits_for"} & (await fields(scripts, task.task)).keys()


async def test_a_repetition_after_the_decision_is_still_a_repetition(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    await pause(scripts, keys, task, token)
    await decide(scripts, keys, task, token)
    assert await pause(scripts, keys, task, token) == ok(4)
    await start(scripts, keys, task, owner="two")
    assert await pause(scripts, keys, task, token) == ok(5)
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"


async def test_what_is_decided_or_overdue_or_gone_is_not_waited_for(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    await decide(scripts, keys, task, token)
    at = int((await fields(scripts, token))["at"])
    assert await pause(scripts, keys, task, token) == no(ReplyCode.TAKEN, b"by c", at, b"yes")
    late = token_key(keys, "late")
    await open_pause(scripts, keys, task, late, entry="pause:late#1", ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await pause(scripts, keys, task, late) == no(ReplyCode.EXPIRED)
    assert await pause(scripts, keys, task, token_key(keys, "none")) == no(ReplyCode.MISSING)
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"
    assert (await fields(scripts, task.lease))["owner"] == b"one"


@pytest.mark.parametrize("status", ["PENDING", "COMPLETE"])
async def test_a_run_that_was_taken_over_or_is_over_pauses_nothing(
    scripts: Scripts, keys: Keys, status: str
) -> None:
    task, token = await opened(scripts, keys)
    await make_task(scripts, task, status, finished=status == "COMPLETE")
    assert await pause(scripts, keys, task, token) == no(ReplyCode.DENIED, status.encode())
    mark, later = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease) + 1
    await ask(scripts, "HINCRBY", task.lease, "epoch", 1)
    assert await pause(scripts, keys, task, token, mark=mark) == no(ReplyCode.LOST, later)


async def test_once_the_lease_of_a_waiting_task_is_gone_its_last_run_writes_no_more(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    mark, before = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    assert await pause(scripts, keys, task, token, mark=mark) == ok(3)
    assert (await record(scripts, task, mark)).word is ReplyCode.OK
    await ask(scripts, "PEXPIRE", task.lease, 1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await lives(scripts, task.lease) == [-2]
    # A repetition is found by its write, which needs no lease.
    assert await pause(scripts, keys, task, token, mark=mark) == ok(3)
    assert await record(scripts, task, mark) == no(ReplyCode.LOST, 0)
    assert (await decide(scripts, keys, task, token)).word is ReplyCode.OK
    assert await record(scripts, task, mark) == no(ReplyCode.LOST, 0)
    assert (await start(scripts, keys, task, owner="two")).word is ReplyCode.OK
    assert await epoch_of(scripts, task.lease) > before
    assert (await record(scripts, task, mark)).word is ReplyCode.LOST


@pytest.mark.parametrize("cleared", [False, True])
async def test_the_epoch_grows_although_the_lease_is_gone_and_the_clock_was_set_back(
    scripts: Scripts, keys: Keys, *, cleared: bool
) -> None:
    task, token = await opened(scripts, keys)
    # As a clock gave it that was an hour ahead.
    before = await clock_ms(scripts) + HOUR
    await ask(scripts, "HSET", task.lease, "epoch", before)
    mark = await mark_of(scripts, task.lease)
    assert await pause(scripts, keys, task, token, mark=mark) == ok(3)
    await ask(scripts, "DEL", task.lease)
    if cleared:
        children = keys.children("s", "t")
        assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(1)
        await make_task(scripts, task, "PENDING")
    else:
        assert (await decide(scripts, keys, task, token)).word is ReplyCode.OK
    assert (await start(scripts, keys, task, owner="two")).word is ReplyCode.OK
    assert await epoch_of(scripts, task.lease) == before + 1 + cleared
    assert (await lives(scripts, task.lease))[0] > HOUR
    assert (await record(scripts, task, mark)).word is ReplyCode.LOST
