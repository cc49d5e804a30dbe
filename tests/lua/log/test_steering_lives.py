"""How long a session's steering lives: as its tasks that are not terminal."""

from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import make_task

DAY = 24 * HOUR


async def _hold(scripts: Scripts, keys: Keys, *, changed: bool) -> None:
    task = task_keys(keys).task
    held = await scripts.hold_steering(keys.steering("s"), task=task, spare_ms=HOUR)
    assert held == ok(int(changed))


async def _settle(scripts: Scripts, keys: Keys, *, changed: bool) -> None:
    settled = await scripts.settle_steering(keys.steering("s"), tasks=task_keys(keys).tasks)
    assert settled == ok(int(changed))


async def _make(scripts: Scripts, keys: Keys, *, life_ms: int, task: str = "t") -> None:
    """Make a worker's task whose record lives so long."""
    of = task_keys(keys, task=task)
    await make_task(scripts, of, "PAUSED")
    await ask(scripts, "HSET", of.task, "job", "{}", "finished", "0")
    await ask(scripts, "PEXPIRE", of.task, life_ms)
    ends_us = (await clock_ms(scripts) + life_ms) * 1000
    await ask(scripts, "ZADD", of.tasks, ends_us, of.task_id)


async def _left(scripts: Scripts, keys: Keys) -> int:
    log = keys.steering("s")
    rows, ids = await lives(scripts, log.rows, log.ids)
    assert abs(rows - ids) < 1000
    return rows


async def test_steering_lives_as_long_as_a_task_that_is_not_terminal(
    scripts: Scripts, keys: Keys
) -> None:
    await append(scripts, keys.steering("s"), "a", topic="t")
    # There is no task, then one of a host, then one that has ended.
    await _hold(scripts, keys, changed=False)
    await make_task(scripts, task_keys(keys), "PAUSED")
    await _hold(scripts, keys, changed=False)
    await _make(scripts, keys, life_ms=30 * DAY)
    await ask(scripts, "HSET", task_keys(keys).task, "finished", "1")
    await _hold(scripts, keys, changed=False)
    assert await _left(scripts, keys) <= 2 * HOUR
    await ask(scripts, "HSET", task_keys(keys).task, "finished", "0")
    await _hold(scripts, keys, changed=True)
    await _hold(scripts, keys, changed=False)
    assert 30 * DAY < await _left(scripts, keys) <= 30 * DAY + HOUR


async def test_no_row_of_steering_that_is_held_is_too_old(scripts: Scripts, keys: Keys) -> None:
    log = keys.steering("s")
    await append(scripts, log, "old", topic="t")
    await _make(scripts, keys, life_ms=30 * DAY)
    await _hold(scripts, keys, changed=True)
    first = (await ask(scripts, "XRANGE", log.rows, "-", "+"))[0][0]
    await clock_passes(scripts, int(first.partition(b"-")[2]) + 1)
    for number in range(100):
        await append(scripts, log, f"new {number}", topic="other", ttl_ms=1)
    assert (await rows_of(scripts, log))[0] == (1, "old")
    assert await _left(scripts, keys) > 30 * DAY


async def test_steering_of_ended_tasks_is_let_go_of(scripts: Scripts, keys: Keys) -> None:
    await append(scripts, keys.steering("s"), "a", topic="t")
    await _settle(scripts, keys, changed=False)
    await _make(scripts, keys, life_ms=30 * DAY)
    await _hold(scripts, keys, changed=True)
    # Another task of the session may have been sent something too.
    await _make(scripts, keys, life_ms=40 * DAY, task="other")
    await _settle(scripts, keys, changed=False)
    await ask(scripts, "ZREM", task_keys(keys).tasks, "other")
    await _make(scripts, keys, life_ms=20 * DAY)
    await _settle(scripts, keys, changed=True)
    assert 19 * DAY < await _left(scripts, keys) <= 20 * DAY
    await _make(scripts, keys, life_ms=1000)
    await _settle(scripts, keys, changed=True)
    await _settle(scripts, keys, changed=False)
    assert 0 < await _left(scripts, keys) <= 2 * HOUR
    await append(scripts, keys.steering("s"), "b", topic="t")
    assert await rows_of(scripts, keys.steering("s")) == [(1, "a"), (2, "b")]
