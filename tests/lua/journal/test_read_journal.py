from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts import JOURNAL_PORTION, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, lives, ok
from tests.support.scripts.tasks import make_task

MUCH = 1 << 20


async def _plant(scripts: Scripts, keys: Keys, notes: Mapping[bytes, bytes]) -> None:
    flat = [part for named in notes.items() for part in named]
    await ask(scripts, "HSET", task_keys(keys).journal, *flat)
    await ask(scripts, "PEXPIRE", task_keys(keys).journal, HOUR)


async def test_an_empty_journal_has_no_notes(scripts: Scripts, keys: Keys) -> None:
    assert await scripts.read_journal(task_keys(keys), names=[], most_bytes=MUCH) == ok([], 0, [])


async def test_a_journal_is_read_without_chunks_and_ends(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    count = 2 * JOURNAL_PORTION + 1
    notes = {b"step:%d#1" % n: b"%d" % n for n in range(count)}
    others = {
        b"versions": b"9",
        b"entries": b"11",
        b"part:0:step:1#1": b"x" * 1000,
        b"end:c": b"{}",
    }
    await _plant(scripts, keys, notes | others)
    found, written, left = (await scripts.read_journal(task, names=[], most_bytes=MUCH)).facts
    assert (written, left) == (11, [])
    assert dict(zip(found[::2], found[1::2], strict=True)) == notes


async def test_a_long_journal_is_read_in_calls_that_each_end_by_their_bytes(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    notes = {b"step:%d#1" % n: b"%03d" % n * 100 for n in range(3 * JOURNAL_PORTION)}
    await _plant(scripts, keys, notes | {b"entries": b"48", b"part:0:step:1#1": b"x"})
    read: dict[bytes, bytes] = {}
    names: list[bytes] = []
    sizes: list[int] = []
    while names or not read:
        # It ends behind the portion in which the limit is passed.
        reply = await scripts.read_journal(task, names=names, most_bytes=JOURNAL_PORTION * 300 + 1)
        found, written, names = reply.facts
        assert written == 48
        sizes.append(len(found) // 2)
        read |= dict(zip(found[::2], found[1::2], strict=True))
    assert sizes == [2 * JOURNAL_PORTION, JOURNAL_PORTION]
    assert read == notes


async def test_an_entry_that_is_gone_is_left_out(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await _plant(scripts, keys, {b"step:a#1": b"1", b"step:c#1": b"3"})
    asked = [b"step:a#1", b"step:b#1", b"step:c#1"]
    reply = await scripts.read_journal(task, names=asked, most_bytes=MUCH)
    assert reply == ok([b"step:a#1", b"1", b"step:c#1", b"3"], 0, [])


async def test_a_journal_that_is_read_lives_as_long_as_its_task(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await ask(scripts, "HSET", task.journal, "step:x#1", "1")
    await ask(scripts, "PEXPIRE", task.journal, HOUR // 2)
    await scripts.read_journal(task, names=[], most_bytes=MUCH)
    assert (await lives(scripts, task.journal))[0] <= HOUR // 2
    await make_task(scripts, task, "PENDING")
    await scripts.read_journal(task, names=[], most_bytes=MUCH)
    assert HOUR < (await lives(scripts, task.journal))[0] <= HOUR + HOUR // 8
