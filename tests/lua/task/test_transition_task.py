from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis_state.scripts import Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start


async def go(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    to: str,
    *,
    froms: Sequence[str],
    mark: bytes = b"",
    write: str = "",
) -> Reply:
    status, _, finer = to.partition(":")
    return await scripts.transition_task(
        task,
        {"result": b"1"},
        mark=mark,
        from_phases=froms,
        status=status,
        phase=finer or status,
        write=write or f"{froms} to {to}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"{write or 'now'}-{to}"),
    )


def reported(reply: Reply) -> dict[bytes, bytes]:
    assert reply.word is ReplyCode.OK
    flat = reply.facts[0]
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_a_task_moves_once_however_often_the_call_is_sent(
    scripts: Scripts, keys: Keys
) -> None:
    task, log = task_keys(keys), keys.updates("s")
    assert await go(scripts, keys, task, "RUNNING", froms=["PENDING"]) == no(ReplyCode.MISSING)
    assert await ask(scripts, "EXISTS", task.task, log.rows) == 0
    await make_task(scripts, task, "PENDING")
    for _ in range(2):
        moved = reported(await go(scripts, keys, task, "RUNNING", froms=["PENDING"]))
        assert (moved[b"status"], moved[b"phase"]) == (b"RUNNING", b"RUNNING:0:RUNNING")
        assert (moved[b"result"], moved[b"version"]) == (b"1", b"2")
    assert await rows_of(scripts, log) == [(1, "now-RUNNING")]
    before = await fields(scripts, task.task)
    denied = await go(scripts, keys, task, "COMPLETE", froms=["PENDING", "RUN"])
    assert denied == no(ReplyCode.DENIED, b"RUNNING")
    assert await fields(scripts, task.task) == before
    assert await rows_of(scripts, log) == [(1, "now-RUNNING")]
    left = await lives(scripts, task.task, task.tasks, log.rows, log.ids)
    assert all(0 < life <= 1.5 * HOUR for life in left)


async def test_a_repetition_undoes_no_move_that_came_since(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "RUNNING")
    reported(await go(scripts, keys, task, "PAUSED", froms=["RUNNING"]))
    reported(await go(scripts, keys, task, "RUNNING", froms=["PAUSED"]))
    again = reported(await go(scripts, keys, task, "PAUSED", froms=["RUNNING"]))
    assert (again[b"status"], again[b"version"]) == (b"RUNNING", b"3")
    reported(await go(scripts, keys, task, "COMPLETE", froms=["RUNNING"]))
    late = reported(await go(scripts, keys, task, "RUNNING", froms=["PAUSED"]))
    assert late[b"status"] == b"COMPLETE"


async def test_a_finer_phase_holds_for_its_status_in_its_run(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "RUNNING")
    reported(await go(scripts, keys, task, "PAUSED:AUTH_REQUIRED", froms=["RUNNING"]))
    refused = await go(scripts, keys, task, "RUNNING", froms=["PAUSED"])
    assert refused == no(ReplyCode.DENIED, b"AUTH_REQUIRED")
    # A host that saves the task anew, in the same state, does not say it less finely.
    await make_task(scripts, task, "PAUSED")
    assert (await go(scripts, keys, task, "RUNNING", froms=[])).facts == [b"AUTH_REQUIRED"]
    await make_task(scripts, task, "FAILED")
    assert (await go(scripts, keys, task, "RUNNING", froms=[])).facts == [b"FAILED"]
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await ask(scripts, "HSET", task.task, "status", "PAUSED")
    mark = await mark_of(scripts, task.lease)
    assert (await go(scripts, keys, task, "x", froms=[], mark=mark)).facts == [b"PAUSED"]


async def test_a_task_that_a_worker_runs_moves_under_its_epoch_only(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    mark, epoch = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    assert await go(scripts, keys, task, "FAILED", froms=["RUNNING"]) == no(ReplyCode.LOST, epoch)
    late = await go(scripts, keys, task, "FAILED", froms=["RUNNING"], mark=STRANGER)
    assert late == no(ReplyCode.LOST, epoch)
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"
    reported(await go(scripts, keys, task, "FAILED", froms=["RUNNING"], mark=mark))


async def test_a_lease_that_ran_out_holds_up_nobody(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    reported(await go(scripts, keys, task, "FAILED", froms=["RUNNING"]))


async def test_of_moves_at_once_one_wins_and_the_others_see_it(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "RUNNING")
    ends = ["COMPLETE", "FAILED", "CANCELLED"] * 7
    replies = await asyncio.gather(
        *(
            go(scripts, keys, task, end, froms=["RUNNING"], write=f"w{number}")
            for number, end in enumerate(ends)
        )
    )
    assert [reply.word for reply in replies].count(ReplyCode.OK) == 1
    won = (await fields(scripts, task.task))["status"]
    assert {reply.facts[0] for reply in replies if reply.word is ReplyCode.DENIED} == {won}
    ((_, row),) = await rows_of(scripts, keys.updates("s"))
    assert row.endswith(f"-{won.decode()}")
