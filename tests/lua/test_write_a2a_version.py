from __future__ import annotations

import asyncio

import pytest

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a_rows import TIMELESS, indexed, version_keys, write
from tests.support.scripts import (
    HOUR,
    append,
    ask,
    clock_ms,
    clock_passes,
    fields,
    lives,
    no,
    rows_of,
)


async def test_a_first_version_is_written_whole(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    before = await clock_ms(scripts)
    reply = await write(scripts, task)
    version, at, epoch = reply.facts
    assert (reply.word, version) == (ReplyCode.OK, 1)
    assert at >= before
    assert epoch >= before
    assert await fields(scripts, task.task) == {
        "state": b"2",
        "phase": b"o",
        "version": b"1",
        "at": str(at).encode(),
        "body": b"body",
    }
    assert await rows_of(scripts, task.events) == [(1, "w")]
    assert await indexed(scripts, keys) == [4, 1, 1]
    assert (await fields(scripts, task.lease))["owner"] == b"me"
    absent = {task.events.channel, task.configs}
    for life in await lives(scripts, *(key for key in task.all if key not in absent)):
        assert 0 < life <= 2 * HOUR


async def test_versions_are_events_numbers(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    for version in range(12):
        reply = await write(scripts, task, rule=str(version), write=f"w{version}")
        assert reply.facts[0] == version + 1
    assert [n for n, _ in await rows_of(scripts, task.events)] == list(range(1, 13))


async def test_one_of_many_writers_of_a_version_wins(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    calls = [write(scripts, task, write=f"w{number}") for number in range(20)]
    words = [reply.word for reply in await asyncio.gather(*calls)]
    assert words.count(ReplyCode.OK) == 1
    assert words.count(ReplyCode.STALE) == 19


async def test_a_stale_version_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    before = await fields(scripts, task.task)
    at = before["at"]
    for rule in ("7", f"7 {at.decode()}", "1 1", "1 "):
        assert await write(scripts, task, rule=rule, write="other") == no(ReplyCode.STALE, 1, at)
    assert await fields(scripts, task.task) == before
    assert await rows_of(scripts, task.events) == [(1, "w")]


async def test_a_repeated_call_gets_its_version_also_after_a_later_write(
    scripts: Scripts, keys: Keys
) -> None:
    task = version_keys(keys)
    first = await write(scripts, task)
    await write(scripts, task, rule="1", write="later")
    assert await write(scripts, task) == first
    assert len(await rows_of(scripts, task.events)) == 2


@pytest.mark.parametrize("rule", ["1", "open", "any", "told"])
async def test_what_has_ended_takes_nothing_more(scripts: Scripts, keys: Keys, rule: str) -> None:
    task = version_keys(keys)
    await write(scripts, task, state="3", phase="e", row=b"e")
    assert await write(scripts, task, rule=rule, write="late") == no(ReplyCode.DENIED, b"3")


async def test_a_plain_save_may_say_an_end_again(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task, state="3", phase="e", row=b"e")
    again = await write(scripts, task, state="3", phase="e", row=b"e", rule="any", write="again")
    assert again.facts[0] == 2


async def test_a_cancel_needs_a_task_and_no_version(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    assert await write(scripts, task, rule="open") == no(ReplyCode.MISSING)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    canceled = {"state": "5", "phase": "e", "row": b"e", "owner": ""}
    reply = await write(scripts, task, rule="open", write="c", **canceled)
    assert reply.facts[0] == 3
    assert (await fields(scripts, task.lease))["owner"] == b""


async def test_a_told_event_changes_nothing_but_the_version(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    assert await write(scripts, task, rule="told") == no(ReplyCode.MISSING)
    await write(scripts, task)
    told = await write(
        scripts, task, rule="told", write="t", body=b"", state="", place=b"", owner=""
    )
    assert told.facts[0] == 2
    found = await fields(scripts, task.task)
    assert (found["body"], found["state"], found["version"]) == (b"body", b"2", b"2")
    assert (await fields(scripts, task.lease))["owner"] == b"me"
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_a_lease_that_lives_lets_nobody_end_its_task(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    epoch = (await write(scripts, task)).facts[2]
    end = {"rule": "1", "write": "end", "state": "4", "phase": "e", "row": b"e", "owner": ""}
    assert (await write(scripts, task, **end, epoch=epoch)).word is ReplyCode.HELD


async def test_a_lease_that_ran_out_lets_one_end_its_task(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    epoch = (await write(scripts, task, lease_ms=1)).facts[2]
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    end = {"rule": "1", "state": "4", "phase": "e", "row": b"e", "owner": ""}
    assert (await write(scripts, task, **end, write="old", epoch=7)).word is ReplyCode.HELD
    replies = await asyncio.gather(
        *(write(scripts, task, **end, write=f"end{number}", epoch=epoch) for number in range(5))
    )
    assert sorted(reply.word for reply in replies) == ["DENIED"] * 4 + ["OK"]


async def test_another_writer_takes_the_lease_under_the_next_epoch(
    scripts: Scripts, keys: Keys
) -> None:
    task = version_keys(keys)
    epoch = (await write(scripts, task)).facts[2]
    assert (await write(scripts, task, rule="1", write="w2")).facts[2] == epoch
    assert (await write(scripts, task, rule="2", write="w3", owner="other")).facts[2] > epoch


async def test_a_change_of_state_and_time_moves_the_places(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    place = f"c 3 1{'9' * 30}".encode()
    await write(scripts, task, rule="1", write="w2", state="3", phase="e", row=b"e", place=place)
    places: list[bytes] = await ask(scripts, "ZRANGE", task.books.index, 0, -1)
    assert len(places) == 4
    assert not any(TIMELESS.encode() in found or b"|2|" in found for found in places)


async def test_the_events_of_an_ended_task_live_no_longer_than_it_says(
    scripts: Scripts, keys: Keys
) -> None:
    task = version_keys(keys)
    await write(scripts, task, ttl_ms=100 * HOUR)
    await write(scripts, task, rule="1", write="e", state="3", phase="e", row=b"e", ttl_ms=HOUR)
    for life in await lives(scripts, task.task, task.events.rows, task.events.ids):
        assert life <= 1.5 * HOUR


async def test_an_end_drops_no_event_of_its_task_for_its_age(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await clock_passes(scripts, await clock_ms(scripts) + 1_100)
    await write(scripts, task, rule="1", write="w2")
    await write(scripts, task, rule="2", write="e", state="3", phase="e", row=b"e", ttl_ms=1_000)
    assert await rows_of(scripts, task.events) == [(1, "w"), (2, "w2"), (3, "e")]


async def test_numbers_go_on_after_the_log_was_lost(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    await ask(scripts, "DEL", task.events.rows, task.events.ids)
    assert (await write(scripts, task, rule="2", write="w3")).facts[0] == 3
    assert await rows_of(scripts, task.events) == [(3, "w3")]
    gap = await scripts.read_log(task.events, after=1, after_ms=0, count=10, topic=None)
    assert gap.word is ReplyCode.GAP


async def test_numbers_go_on_after_the_logs_head_was_lost(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await write(scripts, task)
    await ask(scripts, "DEL", task.events.ids)
    assert (await write(scripts, task, rule="1", write="w2")).facts[0] == 2
    assert await rows_of(scripts, task.events) == [(2, "w2")]


async def test_a_key_of_another_type_is_told(scripts: Scripts, keys: Keys) -> None:
    task = version_keys(keys)
    await append(scripts, task.events, "x")
    await ask(scripts, "SET", task.task, "x", "PX", HOUR)
    with pytest.raises(Exception, match="another type"):
        await write(scripts, task)
