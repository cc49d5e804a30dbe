from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts, Word
from tests.looking import (
    HOUR,
    ask,
    fields,
    lives,
    make_task,
    no,
    ok,
    pause,
    rows_of,
    start,
    task_keys,
    token_key,
)


async def test_a_running_task_is_paused_under_its_token(scripts: Scripts, keys: Keys) -> None:
    task, token, log = task_keys(keys), token_key(keys), keys.updates("s")
    await make_task(scripts, task, "PENDING")
    assert await pause(scripts, keys, task, token) == no(Word.LOST, 0)
    await start(scripts, keys, task)
    for _ in range(2):
        assert await pause(scripts, keys, task, token) == ok(3)
    assert (await fields(scripts, task.task))["status"] == b"PAUSED"
    assert (await fields(scripts, task.lease))["owner"] == b""
    assert await fields(scripts, task.journal) == {"pause:x#1": b"open"}
    rows = [row_id for _, row_id in await rows_of(scripts, log)]
    assert rows == ["started-one", f"checkpoint-{token}", f"paused-{token}"]
    created = (task.task, task.tasks, task.journal, token, log.rows, log.ids, log.topic("t"))
    assert all(0 < life <= 2 * HOUR for life in await lives(scripts, *created))
    other = token_key(keys, "y")
    assert await pause(scripts, keys, task, other) == no(Word.DENIED, b"PAUSED")
    assert await ask(scripts, "EXISTS", other) == 0


async def test_a_repetition_after_the_decision_is_still_a_repetition(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await pause(scripts, keys, task, token)
    await scripts.resolve_token(token, claim="c", by="me", decision=b"", keep_ms=HOUR)
    await make_task(scripts, task, "PENDING")
    assert await pause(scripts, keys, task, token) == ok(4)
    assert (await fields(scripts, task.task))["status"] == b"PENDING"


async def test_a_token_that_was_used_before_is_told(scripts: Scripts, keys: Keys) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await scripts.open_token(token, payload=b"", mark="of another", ttl_ms=HOUR, keep_ms=HOUR)
    await scripts.resolve_token(token, claim="c", by="me", decision=b"yes", keep_ms=HOUR)
    taken = await pause(scripts, keys, task, token)
    assert (taken.word, taken.facts[0], taken.facts[2]) == (Word.TAKEN, b"me", b"yes")
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"
    assert await ask(scripts, "EXISTS", task.journal) == 0
