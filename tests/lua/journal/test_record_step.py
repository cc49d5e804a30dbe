from __future__ import annotations

import asyncio
import json
from typing import Any

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, lives, no
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start

ENTRY = "step:\ud800#1"


async def note(
    scripts: Scripts, keys: Keys, result: bytes, *, mark: bytes | None = None, entry: str = ENTRY
) -> Reply:
    return await scripts.record_step(
        task_keys(keys),
        mark=await mark_of(scripts, task_keys(keys).lease) if mark is None else mark,
        entry=entry,
        checkpoint=True,
        chunks=0,
        about=b'[1,0,""]',
        result=result,
    )


def row(reply: Reply) -> list[Any]:
    assert reply.word is ReplyCode.OK
    found: list[Any] = json.loads(reply.facts[0])
    return found


async def running(scripts: Scripts, keys: Keys) -> None:
    await make_task(scripts, task_keys(keys), "PENDING")
    assert (await start(scripts, keys, task_keys(keys))).word is ReplyCode.OK


async def test_the_first_result_of_a_step_is_kept_with_its_version(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    before = await clock_ms(scripts)
    first = await note(scripts, keys, b"1")
    layout, version, epoch, at_ms, checkpoint, about, result = row(first)
    assert [layout, version, checkpoint, about, result] == [1, 1, True, [1, 0, ""], 1]
    assert epoch == await epoch_of(scripts, task.lease)
    assert first.facts[1] == 1
    assert before <= at_ms <= await clock_ms(scripts)
    for again in (b"1", b"2"):
        assert await note(scripts, keys, again) == first
    assert row(await note(scripts, keys, b"2", entry="step:b#1"))[1] == 2
    left = await lives(scripts, task.journal, task.task)
    # Read one after the other, so not to the millisecond.
    assert 0 < left[1] <= left[0] + HOUR / 1000 <= HOUR + HOUR / 1000


async def test_a_note_under_a_stale_epoch_is_refused(scripts: Scripts, keys: Keys) -> None:
    assert await note(scripts, keys, b"1") == no(ReplyCode.LOST, 0)
    await running(scripts, keys)
    assert await note(scripts, keys, b"1", mark=STRANGER) == no(
        ReplyCode.LOST, await epoch_of(scripts, task_keys(keys).lease)
    )
    assert await lives(scripts, task_keys(keys).journal) == [-2]


async def test_a_task_that_is_gone_gets_no_journal(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    await ask(scripts, "DEL", task.task)
    assert await note(scripts, keys, b"1") == no(ReplyCode.MISSING)
    assert await lives(scripts, task.journal) == [-2]


async def test_a_note_drops_the_chunks_that_it_does_not_need(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    mark = await mark_of(scripts, task.lease)
    for number in range(3):
        for entry in (ENTRY, "step:other#1"):
            await scripts.keep_part(task, mark=mark, entry=entry, number=number, data=b"x")
    await scripts.record_step(
        task, mark=mark, entry=ENTRY, checkpoint=False, chunks=1, about=b"[1]", result=b"null"
    )
    found = await ask(scripts, "HKEYS", task.journal)
    parts = {name.decode("utf-8", "surrogatepass") for name in found if b"part:" in name}
    assert parts == {f"part:0:{ENTRY}", *(f"part:{n}:step:other#1" for n in range(3))}


async def test_many_who_note_one_step_get_one_result_and_as_many_steps_as_many_versions(
    scripts: Scripts, keys: Keys
) -> None:
    await running(scripts, keys)
    same = await asyncio.gather(*(note(scripts, keys, b"%d" % n) for n in range(20)))
    assert len({tuple(reply.facts) for reply in same}) == 1
    assert same[0].facts[1] == 1
    others = await asyncio.gather(
        *(note(scripts, keys, b"0", entry=f"step:{n}#1") for n in range(20))
    )
    assert sorted(row(reply)[1] for reply in others) == list(range(2, 22))


async def test_a_task_that_was_restored_without_a_lifetime_keeps_its_steps(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    await ask(scripts, "PERSIST", task.task)
    first = await note(scripts, keys, b"1")
    assert row(first)[-1] == 1
    assert row(await note(scripts, keys, b"2")) == row(first)
    for key in (task.task, task.journal):
        await ask(scripts, "PEXPIRE", key, HOUR)
