from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from redis_state import CommandRefused
from redis_state.scripts import Reply, ReplyCode, Scripts, TaskKeys
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
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start
from tests.support.scripts.users import without_channels

ROUNDS = 150


async def opened(
    scripts: Scripts, keys: Keys, name: str = "t", *, ttl_ms: int = HOUR
) -> tuple[TaskKeys, str]:
    task, token = task_keys(keys, "s", name), token_key(keys, name)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token, ttl_ms=ttl_ms)
    return task, token


async def waiting(scripts: Scripts, keys: Keys) -> tuple[TaskKeys, str]:
    task, token = await opened(scripts, keys)
    await pause(scripts, keys, task, token)
    return task, token


async def is_overdue(scripts: Scripts, token: str) -> None:
    await ask(scripts, "HSET", token, "expires", await clock_ms(scripts))
    await clock_passes(scripts, await clock_ms(scripts))


async def state_of(scripts: Scripts, task: TaskKeys) -> bytes:
    return (await fields(scripts, task.task))["status"]


async def test_the_first_claim_sets_the_task_that_waits_pending(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await waiting(scripts, keys)
    log = keys.updates("s")
    for _ in range(2):
        assert await decide(scripts, keys, task, token) == ok(b"PENDING", 1)
    at = int((await fields(scripts, token))["at"])
    taken = no(ReplyCode.TAKEN, b"by c", at, b"yes")
    assert await decide(scripts, keys, task, token, "d") == taken
    # A claim is bound to what it decided.
    assert await decide(scripts, keys, task, token, "c", answer="no") == taken
    assert await state_of(scripts, task) == b"PENDING"
    assert await entries_of(scripts, task) == {"pause:x#1": b"yes by c"}
    assert [row_id for _, row_id in await rows_of(scripts, log)][3:] == ["resumed-c"]
    assert await ask(scripts, "ZRANGE", task.tasks, 0, -1) == [task.task_id.encode()]
    created = (task.task, task.tasks, task.journal, token, log.rows, log.ids)
    assert all(0 < life <= 2 * HOUR for life in await lives(scripts, *created))
    assert (await start(scripts, keys, task, owner="two")).word is ReplyCode.OK
    assert await decide(scripts, keys, task, token) == ok(b"RUNNING", 2)
    assert await state_of(scripts, task) == b"RUNNING"


async def test_a_task_that_does_not_wait_for_it_gets_the_note_only(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    other = token_key(keys, "other")
    await open_pause(scripts, keys, task, other, entry="pause:y#1")
    assert await decide(scripts, keys, task, token) == ok(b"RUNNING", 1)
    await open_pause(scripts, keys, task, third := token_key(keys, "third"), entry="pause:z#1")
    await pause(scripts, keys, task, third, entry="pause:z#1")
    decided = await decide(scripts, keys, task, other, "d", entry="pause:y#1")
    assert decided == ok(b"PAUSED", 1)
    notes = {"pause:x#1": b"yes by c", "pause:y#1": b"yes by d", "pause:z#1": b"open"}
    assert await entries_of(scripts, task) == notes
    assert await state_of(scripts, task) == b"PAUSED"
    reported = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert [row_id for row_id in reported if "ed-" in row_id and "opened" not in row_id] == [
        "started-one", "decided-c", f"paused-{third}", "decided-d",
    ]  # fmt: skip
    assert await decide(scripts, keys, task, third, "e", entry="pause:z#1") == ok(b"PENDING", 1)


async def test_a_task_that_is_over_keeps_its_token(scripts: Scripts, keys: Keys) -> None:
    task, token = await waiting(scripts, keys)
    assert await decide(scripts, keys, task, token_key(keys, "none")) == no(ReplyCode.MISSING)
    await make_task(scripts, task, "CANCELLED", finished=True)
    for overdue in (False, True):
        denied = await decide(scripts, keys, task, token, overdue=overdue)
        assert denied == no(ReplyCode.DENIED, b"CANCELLED")
    assert (await fields(scripts, token))["state"] == b"open"
    await ask(scripts, "DEL", task.task)
    assert await decide(scripts, keys, task, token) == no(ReplyCode.MISSING)


async def test_a_token_of_an_earlier_task_of_the_id_decides_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await waiting(scripts, keys)
    await ask(scripts, "DEL", task.task, task.journal)
    await make_task(scripts, task, "PENDING")
    for overdue in (False, True):
        assert await decide(scripts, keys, task, token, overdue=overdue) == no(ReplyCode.MISSING)
    assert await ask(scripts, "EXISTS", task.journal) == 0


async def test_nobody_decides_what_is_overdue_but_the_deadline(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await waiting(scripts, keys)
    early = await decide(scripts, keys, task, token, "late", overdue=True)
    assert early.word is ReplyCode.HELD
    assert 0 < early.facts[0] <= HOUR
    await is_overdue(scripts, token)
    assert await decide(scripts, keys, task, token) == no(ReplyCode.EXPIRED)
    for _ in range(2):
        late = await decide(scripts, keys, task, token, "late", answer="no", overdue=True)
        assert late == ok(b"PENDING", 1)
    at = int((await fields(scripts, token))["at"])
    assert await decide(scripts, keys, task, token) == no(ReplyCode.TAKEN, b"by late", at, b"no")
    assert await entries_of(scripts, task) == {"pause:x#1": b"no by late"}


async def test_a_task_whose_token_is_gone_does_not_wait_for_ever(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await waiting(scripts, keys)
    await ask(scripts, "DEL", token)
    assert await decide(scripts, keys, task, token) == no(ReplyCode.MISSING)
    other = token_key(keys, "other")
    assert await decide(scripts, keys, task, other, overdue=True) == no(ReplyCode.MISSING)
    assert await decide(scripts, keys, task, token, overdue=True) == ok(b"PENDING", 1)
    assert await entries_of(scripts, task) == {"pause:x#1": b"yes by c"}


async def test_a_worker_decides_on_its_own_task_as_long_as_it_is_its_own(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    await ask(scripts, "DEL", token)
    assert await decide(scripts, keys, task, token, overdue=True) == no(ReplyCode.MISSING)
    assert await decide(scripts, keys, task, token, overdue=True, mark=STRANGER) == no(
        ReplyCode.LOST, await epoch_of(scripts, task.lease)
    )
    mark = await mark_of(scripts, task.lease)
    assert await decide(scripts, keys, task, token, overdue=True, mark=mark) == ok(b"RUNNING", 1)
    assert await entries_of(scripts, task) == {"pause:x#1": b"yes by c"}


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
async def test_approval_and_rejection_and_deadline_at_once_give_one_decision(
    scripts: Scripts, keys: Keys, *, waits: bool
) -> None:
    winners: Counter[str] = Counter()
    names = ["approve", "reject", "timeout", "timeout"]
    early_ms = 4
    for number in range(4 * ROUNDS):
        if number >= ROUNDS and len(winners) == 3:
            break
        task, token = await opened(scripts, keys, f"t{number}")
        if waits:
            await pause(scripts, keys, task, token)
        deadline = await clock_ms(scripts) + early_ms
        await ask(scripts, "HSET", token, "expires", deadline)
        # People claim in good time, in the last millisecond, or in the one that is too late.
        from_ms = deadline - (early_ms, 1, 0)[number % 3]
        calls = [race(scripts, keys, (task, token), name, from_ms) for name in names]
        ends = await asyncio.gather(*(calls if number % 2 else calls[::-1]))
        actor = (await fields(scripts, token))["actor"].decode().removeprefix("by ")
        winners[actor] += 1
        # A busy machine needs longer for what is in good time.
        if number % 3 == 0:
            early_ms = min(2 * early_ms, 256) if actor == "timeout" else 4
        for name, reply in zip(names if number % 2 else names[::-1], ends, strict=True):
            assert (reply.word is ReplyCode.OK) == (name == actor), (name, actor, reply)
            assert reply.word in (ReplyCode.OK, ReplyCode.TAKEN, ReplyCode.EXPIRED)
            if reply.word is ReplyCode.TAKEN:
                assert (reply.text(0), reply.text(2)) == (f"by {actor}", actor)
        assert await entries_of(scripts, task) == {"pause:x#1": f"{actor} by {actor}".encode()}
        assert await state_of(scripts, task) == (b"PENDING" if waits else b"RUNNING")
    assert set(winners) == {"approve", "reject", "timeout"}, winners


async def race(
    scripts: Scripts, keys: Keys, pair: tuple[TaskKeys, str], name: str, from_ms: int
) -> Reply:
    """Claim from a moment on, as people do, or as often as it takes, as the sweepers do."""
    overdue = name == "timeout"
    while not overdue and await clock_ms(scripts) < from_ms:
        pass
    while True:
        reply = await decide(scripts, keys, *pair, name, answer=name, overdue=overdue)
        if reply.word is not ReplyCode.HELD:
            return reply


@pytest.mark.role("any", why="it makes users")
async def test_a_decision_that_may_not_be_published_leaves_the_pause_open(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await waiting(scripts, keys)
    async with without_channels(scripts, keys):
        with pytest.raises(CommandRefused):
            await decide(scripts, keys, task, token, "narrow")
    assert (await fields(scripts, token))["state"] == b"open"
    assert await entries_of(scripts, task) == {"pause:x#1": b"open"}
    assert await decide(scripts, keys, task, token) == ok(b"PENDING", 1)
