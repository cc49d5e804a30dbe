from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.scripts.stores.tasks.journal import _SLICE
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, lives, ok
from tests.support.scripts.tasks import make_task


async def test_an_empty_journal_has_no_notes(scripts: Scripts, keys: Keys) -> None:
    assert await scripts.read_journal(task_keys(keys)) == ok([], 0)


async def test_a_journal_is_read_without_chunks_and_ends(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    count = 2 * _SLICE + 1
    notes = {b"step:%d#1" % n: b"%d" % n for n in range(count)}
    others = {
        b"versions": b"9",
        b"entries": b"11",
        b"part:0:step:1#1": b"x" * 1000,
        b"end:c": b"{}",
    }
    flat = [part for named in (notes | others).items() for part in named]
    await ask(scripts, "HSET", task.journal, *flat)
    found, written = (await scripts.read_journal(task)).facts
    assert written == 11
    assert dict(zip(found[::2], found[1::2], strict=True)) == notes


async def test_a_journal_that_is_read_lives_as_long_as_its_task(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await ask(scripts, "HSET", task.journal, "step:x#1", "1")
    await ask(scripts, "PEXPIRE", task.journal, HOUR // 2)
    await scripts.read_journal(task)
    assert (await lives(scripts, task.journal))[0] <= HOUR // 2
    await make_task(scripts, task, "PENDING")
    await scripts.read_journal(task)
    assert HOUR < (await lives(scripts, task.journal))[0] <= HOUR + HOUR // 8
