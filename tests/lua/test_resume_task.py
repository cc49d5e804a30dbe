from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Reply, Scripts, TaskKeys, Word
from tests.looking import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    fields,
    lives,
    make_task,
    no,
    ok,
    pause,
    rows_of,
    saying,
    start,
    task_keys,
    token_key,
)


async def resume(
    scripts: Scripts, keys: Keys, task: TaskKeys, token: str, claim: str = "c"
) -> Reply:
    return await scripts.resume_task(
        task,
        {"status": b"PENDING"},
        token=token,
        claim=claim,
        by=f"by {claim}",
        decision=b"yes",
        keep_ms=HOUR,
        entry="pause:x#1",
        ttl_ms=HOUR,
        announcement=saying(keys, "resumed"),
    )


async def paused(scripts: Scripts, keys: Keys) -> tuple[TaskKeys, str]:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await pause(scripts, keys, task, token)
    return task, token


async def test_the_first_claim_sets_the_task_pending(scripts: Scripts, keys: Keys) -> None:
    task, token = await paused(scripts, keys)
    log = keys.updates("s")
    for _ in range(2):
        assert await resume(scripts, keys, task, token) == ok(b"payload", 1)
    at = int((await fields(scripts, token))["at"])
    assert await resume(scripts, keys, task, token, "d") == no(Word.TAKEN, b"by c", at, b"yes")
    assert (await fields(scripts, task.task))["status"] == b"PENDING"
    assert await fields(scripts, task.journal) == {"pause:x#1": b"yes"}
    assert [row_id for _, row_id in await rows_of(scripts, log)][3:] == ["resumed"]
    created = (task.task, task.tasks, task.journal, token, log.rows, log.ids, log.topic("t"))
    assert all(0 < life <= 1.5 * HOUR for life in await lives(scripts, *created))
    assert (await start(scripts, keys, task, owner="two")).facts[0] == 2
    assert await resume(scripts, keys, task, token) == ok(b"payload", 2)
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"


async def test_a_task_that_is_not_paused_keeps_its_token(scripts: Scripts, keys: Keys) -> None:
    task, token = await paused(scripts, keys)
    assert await resume(scripts, keys, task, token_key(keys, "none")) == no(Word.MISSING)
    await make_task(scripts, task, "CANCELLED", finished=True)
    assert await resume(scripts, keys, task, token) == no(Word.DENIED, b"CANCELLED")
    assert (await fields(scripts, token))["state"] == b"open"


async def test_an_expired_token_resumes_nothing(scripts: Scripts, keys: Keys) -> None:
    task, token = await paused(scripts, keys)
    await ask(scripts, "HSET", token, "expires", await clock_ms(scripts))
    await clock_passes(scripts, await clock_ms(scripts))
    assert await resume(scripts, keys, task, token) == no(Word.EXPIRED)
    assert (await fields(scripts, task.task))["status"] == b"PAUSED"
