"""publish_value, send_message, take_message, await_message and wake_receiver."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state import CommandRefused
from redis_state.scripts import LaneState, Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start
from tests.support.scripts.users import without_channels

BOX = "signal:\N{GRINNING FACE}"


async def waiting(scripts: Scripts, keys: Keys) -> TaskKeys:
    """Make a worker's task that is PENDING."""
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await ask(scripts, "HSET", task.task, "job", "{}")
    return task


async def running(scripts: Scripts, keys: Keys) -> TaskKeys:
    task = await waiting(scripts, keys)
    assert (await start(scripts, keys, task)).word is ReplyCode.OK
    return task


async def send(
    scripts: Scripts,
    keys: Keys,
    message: str = "m",
    *,
    box: str = BOX,
    covered: bool = True,
    sent: bytes = b"digest",
    most: int = 3,
    most_bytes: int = 1_000,
) -> Reply:
    return await scripts.send_message(
        task_keys(keys),
        {"status": b"PENDING"},
        live=keys.updates("live").channel,
        covered=covered,
        box=box,
        message_id=message,
        message=f'"{message}"]'.encode(),
        sent=sent,
        most=most,
        most_bytes=most_bytes,
        write=f"sent {message}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"sent-{message}"),
    )


async def take(
    scripts: Scripts,
    keys: Keys,
    number: int = 1,
    *,
    box: str = BOX,
    timeout_ms: int = HOUR,
    mark: bytes | None = None,
) -> Reply:
    task = task_keys(keys)
    return await scripts.take_message(
        task,
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        entry=f"{box}#{number}",
        box=box,
        timeout_ms=timeout_ms,
    )


async def wait(
    scripts: Scripts,
    keys: Keys,
    *boxes: str,
    left_ms: int = HOUR,
    mark: bytes | None = None,
    write: str = "waits",
) -> Reply:
    task = task_keys(keys)
    return await scripts.await_message(
        task,
        {"status": b"PAUSED"},
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        left_ms=left_ms,
        boxes="\0".join(["", *(boxes or (BOX,)), ""]).encode(),
        write=write,
        ttl_ms=HOUR,
        announcement=saying(keys, write),
    )


async def wake(scripts: Scripts, keys: Keys, write: str = "woken") -> Reply:
    return await scripts.wake_receiver(
        task_keys(keys),
        {"status": b"PENDING"},
        write=write,
        ttl_ms=HOUR,
        announcement=saying(keys, write),
    )


def texts(*replies: Reply) -> list[Any]:
    """Return the messages in replies of take_message, without the time."""
    return [reply.facts[0].rpartition(b",")[2].rstrip(b"]").decode() for reply in replies]


async def status(scripts: Scripts, keys: Keys) -> bytes:
    return (await fields(scripts, task_keys(keys).task))["status"]


async def test_messages_are_taken_in_order_and_leave_nothing_but_the_journal(
    scripts: Scripts, keys: Keys
) -> None:
    task = await waiting(scripts, keys)
    for message in ("a", "b", "a", "c"):
        new = message != "a" or not (await fields(scripts, task.journal))
        known = [] if new else [b"digest"]
        assert await send(scripts, keys, message, sent=b"digest" if new else b"x") == ok(
            int(new), b"PENDING", *known
        )
    assert await send(scripts, keys, "other", box="signal:x", most=4) == ok(1, b"PENDING")
    await start(scripts, keys, task)
    replies = [await take(scripts, keys, number) for number in (1, 2, 1, 3)]
    assert texts(*replies) == ['"a"', '"b"', '"a"', '"c"']
    assert (await take(scripts, keys, 4)).word is ReplyCode.HELD
    found = await fields(scripts, task.journal)
    assert found["entries"] == b"3"
    assert found["mail"].startswith(b"1 ")
    assert {name for name in found if name.startswith(("mail:", "box:"))} == {
        "mail:1:signal:x",
        "box:signal:x",
    }
    assert texts(await take(scripts, keys, box="signal:x")) == ['"other"']
    assert (await fields(scripts, task.journal))["mail"] == b"0 0"
    left = await lives(scripts, task.journal, task.task)
    assert 0 < left[0] <= HOUR


async def test_a_box_is_full_by_number_and_by_size_and_says_so(
    scripts: Scripts, keys: Keys
) -> None:
    task = await waiting(scripts, keys)
    for message in "abc":
        assert (await send(scripts, keys, message)).word is ReplyCode.OK
    before = await fields(scripts, task.journal)
    assert await send(scripts, keys, "d") == no(ReplyCode.FULL, 3)
    assert await send(scripts, keys, "d", most=9, most_bytes=60) == no(ReplyCode.FULL, 3)
    # One that is there is not too much.
    assert await send(scripts, keys, "a") == ok(0, b"PENDING", b"digest")
    assert await fields(scripts, task.journal) == before


async def test_only_an_unfinished_task_of_a_worker_takes_mail(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    assert await send(scripts, keys) == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    # A host's own task: nobody would take it.
    assert await send(scripts, keys) == no(ReplyCode.MISSING)
    await ask(scripts, "HSET", task.task, "job", "{}", "status", "FAILED", "finished", 1)
    assert await send(scripts, keys) == no(ReplyCode.DENIED, b"FAILED")
    assert await lives(scripts, task.journal) == [-2]


async def test_nobody_takes_under_a_stale_lease_or_from_a_task_that_is_gone(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    await send(scripts, keys)
    before = await fields(scripts, task.journal)
    epoch = await epoch_of(scripts, task.lease)
    mark = await mark_of(scripts, task.lease)
    for call in (take, wait):
        assert await call(scripts, keys, mark=STRANGER) == no(ReplyCode.LOST, epoch)
        hole = mark.replace(b"  ", b" 7 ")
        assert await call(scripts, keys, mark=hole) == no(ReplyCode.REWOUND, 0)
    assert await fields(scripts, task.journal) == before
    await ask(scripts, "DEL", task.task)
    assert await take(scripts, keys) == no(ReplyCode.MISSING)


async def test_the_time_to_wait_counts_from_the_first_call_and_its_end_is_recorded(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    first = await take(scripts, keys, timeout_ms=HOUR)
    assert first.word is ReplyCode.HELD
    assert 0 < first.facts[0] <= HOUR
    # A later run may ask for longer: the deadline stands, but for a clock that was set back.
    again = await take(scripts, keys, timeout_ms=2 * HOUR)
    assert again.facts[0] <= first.facts[0]
    await ask(scripts, "HSET", task.journal, f"due:{BOX}#1", 1 << 52)
    assert (await take(scripts, keys, timeout_ms=1_000)).facts[0] == 1_000
    # From then on.
    left_ms = int((await fields(scripts, task.journal))[f"due:{BOX}#1"]) - await clock_ms(scripts)
    assert left_ms <= 1_000
    await ask(scripts, "HSET", task.journal, f"due:{BOX}#1", 1)
    assert await take(scripts, keys) == ok(b"null", 1)
    # What comes now is for the next call.
    await send(scripts, keys)
    assert await take(scripts, keys) == ok(b"null", 1)
    assert texts(await take(scripts, keys, 2)) == ['"m"']
    assert "due:" not in "".join(await fields(scripts, task.journal))


async def test_a_task_that_waits_is_woken_once_by_a_message_of_its_boxes(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    for _ in range(2):
        assert await wait(scripts, keys, "signal:a", BOX) == ok(3)
    found = await fields(scripts, task.task)
    assert found["status"] == b"PAUSED"
    assert (await fields(scripts, task.lease))["owner"] == b""
    lasting = await lives(scripts, task.task, task.journal, task.lease)
    assert [life > HOUR for life in lasting if life != -2] == [True, False]
    assert 0 < lasting[2] <= 300_000
    assert await send(scripts, keys, "x", box="signal:other") == ok(1, b"PAUSED")
    assert (await wake(scripts, keys)).word is ReplyCode.HELD
    assert await send(scripts, keys, "a", covered=False) == no(ReplyCode.HELD)
    assert await status(scripts, keys) == b"PAUSED"
    replies = await asyncio.gather(*(send(scripts, keys, f"{n}", most=99) for n in range(20)))
    assert replies == [ok(1, b"PENDING")] * 20
    assert await wake(scripts, keys) == no(ReplyCode.DENIED, b"PENDING")
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert rows == ["started-one", "waits", "sent-0"]
    # A repetition of the wait is one still.
    assert (await wait(scripts, keys, "signal:a", BOX)).word is ReplyCode.OK
    assert await status(scripts, keys) == b"PENDING"


async def test_a_task_does_not_wait_for_what_is_there_or_over(scripts: Scripts, keys: Keys) -> None:
    await running(scripts, keys)
    assert await wait(scripts, keys, left_ms=0) == no(ReplyCode.AGAIN)
    await send(scripts, keys)
    assert await wait(scripts, keys, "signal:a", BOX) == no(ReplyCode.AGAIN)
    assert (await wait(scripts, keys, "signal:a")).word is ReplyCode.OK
    assert await wait(scripts, keys, "signal:a", write="again") == no(ReplyCode.DENIED, b"PAUSED")


async def test_a_sweeper_wakes_a_task_at_its_deadline_and_one_whose_message_is_there(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    assert await wake(scripts, keys) == no(ReplyCode.DENIED, b"RUNNING")
    await wait(scripts, keys)
    assert (await wake(scripts, keys)).word is ReplyCode.HELD
    await ask(scripts, "HSET", task.task, "waits_until", 1)
    replies = [await wake(scripts, keys), await wake(scripts, keys)]
    assert replies == [ok(4), ok(4)]
    assert await wake(scripts, keys, "another sweeper") == no(ReplyCode.DENIED, b"PENDING")
    await start(scripts, keys, task, owner="two")
    await wait(scripts, keys, write="waits again")
    await ask(scripts, "HSET", task.journal, f"box:{BOX}", "0 1")
    assert (await wake(scripts, keys, "repair")).word is ReplyCode.OK
    await ask(scripts, "DEL", task.task)
    assert await wake(scripts, keys) == no(ReplyCode.MISSING)


async def test_a_task_waits_for_no_longer_than_its_length_if_the_clock_is_set_back(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    await wait(scripts, keys, left_ms=1_000)
    await ask(scripts, "HINCRBY", task.task, "waits_until", HOUR)
    assert await wake(scripts, keys) == no(ReplyCode.HELD, 1_000)
    left_ms = int((await fields(scripts, task.task))["waits_until"]) - await clock_ms(scripts)
    assert left_ms <= 1_000
    # An earlier version does not write the length.
    await ask(scripts, "HDEL", task.task, "waits_ms")
    await ask(scripts, "HINCRBY", task.task, "waits_until", HOUR)
    held = await wake(scripts, keys)
    assert held.word is ReplyCode.HELD
    assert held.facts[0] > 1_000


async def test_the_length_of_an_earlier_wait_shortens_none_of_an_earlier_version(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    await wait(scripts, keys, left_ms=1_000)
    # It writes when its own wait ends, and leaves the length that stands there.
    ends = await clock_ms(scripts) + HOUR
    await ask(scripts, "HSET", task.task, "waits_until", ends, "pause_write", "its own")
    held = await wake(scripts, keys)
    assert held.word is ReplyCode.HELD
    assert held.facts[0] > 1_000
    assert int((await fields(scripts, task.task))["waits_until"]) == ends


@pytest.mark.parametrize("other", [("waits_for", "child"), ("pause_token", "token")])
async def test_a_task_that_waits_for_something_else_is_left_alone(
    scripts: Scripts, keys: Keys, other: tuple[str, str]
) -> None:
    task = await running(scripts, keys)
    await wait(scripts, keys)
    await ask(scripts, "HSET", task.task, *other)
    assert await send(scripts, keys) == ok(1, b"PAUSED")
    assert await wake(scripts, keys) == no(ReplyCode.DENIED, b"PAUSED")


async def publish(
    scripts: Scripts,
    keys: Keys,
    row: str,
    key: str = "k",
    *,
    value: bytes = b"1",
    most: int = 2,
    mark: bytes | None = None,
) -> Reply:
    task = task_keys(keys)
    return await scripts.publish_value(
        task,
        saying(keys, row),
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        entry=f"value:{key}",
        value=value,
        most=most,
        lane=LaneState("lane:", b"[]"),
    )


async def test_the_last_value_of_a_key_stands_and_keys_are_few(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    assert await publish(scripts, keys, "1") == ok(1)
    assert await publish(scripts, keys, "2", value=b'{"a": 1}') == ok(2)
    # The first call, again.
    assert await publish(scripts, keys, "1") == ok(2)
    assert await publish(scripts, keys, "3", "other") == ok(3)
    before = await fields(scripts, task.journal)
    assert await publish(scripts, keys, "4", "third") == no(ReplyCode.FULL, 2)
    assert await publish(scripts, keys, "4", mark=STRANGER) == no(
        ReplyCode.LOST, await epoch_of(scripts, task.lease)
    )
    assert await fields(scripts, task.journal) == before
    (values,) = (await scripts.list_values(task)).facts
    found = dict(zip(values[::2], values[1::2], strict=True))
    assert sorted(found) == [b"value:k", b"value:other"]
    assert found[b"value:k"].endswith(b',{"a": 1}]')
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert rows == ["started-one", "1", "2", "3"]
    # A run reads neither values nor mail at its start.
    await send(scripts, keys)
    await take(scripts, keys, box="request:none")
    read = await scripts.read_journal(task, names=[], most_bytes=1 << 20)
    assert read.facts == [[b"lane:", b"[]"], 3, []]
    await ask(scripts, "DEL", task.task)
    assert await publish(scripts, keys, "5") == no(ReplyCode.MISSING)


async def test_a_task_that_was_restored_without_a_lifetime_keeps_its_mail(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    await ask(scripts, "PERSIST", task.task)
    assert await send(scripts, keys) == ok(1, b"RUNNING")
    found = await take(scripts, keys)
    assert found.word is ReplyCode.OK
    assert found.facts[0].endswith(b'"m"]')
    assert (await fields(scripts, task.journal))["entries"] == b"1"
    for key in (task.task, task.journal):
        await ask(scripts, "PEXPIRE", key, HOUR)


@pytest.mark.parametrize("name", ["a\0b", "a\0", "\0", "a\0\0b\n"])
async def test_a_name_with_a_zero_byte_is_found_and_no_part_of_it(
    scripts: Scripts, keys: Keys, name: str
) -> None:
    task, box = await waiting(scripts, keys), f"signal:{name}"
    await start(scripts, keys, task)
    await send(scripts, keys, "other", box="signal:" + name.partition("\0")[0])
    await send(scripts, keys, "last", box="signal:z")
    assert (await wait(scripts, keys, "request:x", box, "signal:y")).word is ReplyCode.OK
    assert (await wake(scripts, keys)).word is ReplyCode.HELD
    await ask(scripts, "HSET", task.journal, f"box:{box}", "0 1")
    assert (await wake(scripts, keys)).word is ReplyCode.OK
    await start(scripts, keys, task, owner="next")
    for boxes in ([box], ["request:x", box, "signal:y"], ["signal:y", box]):
        assert await wait(scripts, keys, *boxes, write="again") == no(ReplyCode.AGAIN)


@pytest.mark.role("any", why="it makes users")
async def test_a_message_that_may_not_be_published_is_not_there(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    was = await fields(scripts, task.journal)
    async with without_channels(scripts, keys):
        with pytest.raises(CommandRefused):
            await send(scripts, keys)
    assert await fields(scripts, task.journal) == was
    assert await send(scripts, keys) == ok(1, b"RUNNING")
