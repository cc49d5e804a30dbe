from __future__ import annotations

import asyncio

from redis_state.scripts import ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys, token_key
from tests.support.scripts.logs import rows_of
from tests.support.scripts.pauses import decide, open_pause, pause
from tests.support.scripts.replies import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    entries_of,
    fields,
    lives,
    no,
    ok,
)
from tests.support.scripts.tasks import make_task, start


async def opening(scripts: Scripts, token: str) -> int:
    return int((await fields(scripts, token))["opened"])


async def listed(scripts: Scripts, task: TaskKeys) -> list[bytes]:
    """Return what stands for open pauses among the session's tasks."""
    found: list[bytes] = await ask(scripts, "ZRANGEBYSCORE", task.tasks, "-inf", "(0")
    return found


async def test_a_running_task_opens_a_pause_once(scripts: Scripts, keys: Keys) -> None:
    task, token, log = task_keys(keys), token_key(keys), keys.updates("s")
    await make_task(scripts, task, "PENDING")
    assert await open_pause(scripts, keys, task, token) == no(ReplyCode.LOST, 0)
    await start(scripts, keys, task)
    before = await clock_ms(scripts)
    opened = await asyncio.gather(*(open_pause(scripts, keys, task, token) for _ in range(20)))
    assert opened[0] == ok(b"open", HOUR, 1, await opening(scripts, token))
    assert {reply.facts[0] for reply in opened} == {b"open"}
    assert all(0 < reply.facts[1] <= HOUR for reply in opened)
    assert await entries_of(scripts, task) == {"pause:x#1": b"open"}
    assert {reply.facts[2] for reply in opened} == {1}
    found = await fields(scripts, token)
    assert (found["state"], found["payload"], found["task"]) == (b"open", b"about", b"owner")
    assert found["order"] == (await fields(scripts, task.task))["order"]
    assert before <= int(found["opened"]) == int(found["expires"]) - HOUR
    assert await listed(scripts, task) == [b"\xff" + token.rpartition(":")[2].encode()]
    rows = [row_id for _, row_id in await rows_of(scripts, log)]
    assert rows == ["started-one", f"opened-{token}"]
    created = (task.journal, token, task.tasks, log.rows, log.ids)
    assert all(0 < life <= 2 * HOUR for life in await lives(scripts, *created))
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"


async def test_a_task_that_does_not_run_opens_nothing(scripts: Scripts, keys: Keys) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)
    await pause(scripts, keys, task, token)
    other = token_key(keys, "y")
    denied = await open_pause(scripts, keys, task, other, entry="pause:y#1")
    assert denied == no(ReplyCode.DENIED, b"PAUSED")
    assert await lives(scripts, other) == [-2]
    assert list(await entries_of(scripts, task)) == ["pause:x#1"]


async def test_one_that_is_open_still_is_listed_again(scripts: Scripts, keys: Keys) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)
    await ask(scripts, "DEL", task.tasks)
    again = await open_pause(scripts, keys, task, token)
    assert again.facts[1] > 0
    assert await listed(scripts, task) == [b"\xff" + token.rpartition(":")[2].encode()]
    assert all(0 < life <= HOUR for life in await lives(scripts, task.tasks))


async def test_one_that_is_decided_or_overdue_has_no_time_left(
    scripts: Scripts, keys: Keys
) -> None:
    task, token, late = task_keys(keys), token_key(keys), token_key(keys, "late")
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)
    await decide(scripts, keys, task, token)
    assert await open_pause(scripts, keys, task, token) == ok(
        b"yes by c", 0, 1, await opening(scripts, token)
    )
    await open_pause(scripts, keys, task, late, entry="pause:late#1", ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    again = await open_pause(scripts, keys, task, late, entry="pause:late#1")
    assert again == ok(b"open", 0, 2, await opening(scripts, late))
    # The next one opened takes what is overdue off the session's list.
    third = token_key(keys, "third")
    await open_pause(scripts, keys, task, third, entry="pause:third#1")
    assert await listed(scripts, task) == [b"\xff" + third.rpartition(":")[2].encode()]
