from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import SCOPE, TIMELESS, a2a_keys, all_keys, create, indexed, write
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, lives, no, ok


async def test_a_first_version_is_written_whole(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    before = await clock_ms(scripts)
    reply = await write(scripts, task)
    version, at, epoch = reply.facts
    assert (reply.word, version) == (ReplyCode.OK, 1)
    assert at >= before
    assert epoch >= before
    found = await fields(scripts, task.task)
    assert at * 1000 <= int(found.pop("created")) < (at + 1) * 1000
    assert found == {
        "creator": b"w",
        "state": b"2",
        "phase": b"o",
        "version": b"1",
        "at": str(at).encode(),
        "body": b"body",
    }
    assert await rows_of(scripts, task.events) == [(1, "w")]
    assert await indexed(scripts, keys) == [4, 1, 1]
    assert (await fields(scripts, task.lease))["owner"] == b"me"
    absent = {task.events.channel, task.configs, task.history, task.artifacts}
    for life in await lives(scripts, *(key for key in all_keys(task) if key not in absent)):
        assert 0 < life <= 2 * HOUR


async def test_versions_are_events_numbers(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    for version in range(12):
        reply = await write(scripts, task, rule=str(version), write=f"w{version}")
        assert reply.facts[0] == version + 1
    assert [n for n, _ in await rows_of(scripts, task.events)] == list(range(1, 13))


async def test_one_of_many_writers_of_a_version_wins(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    calls = [write(scripts, task, write=f"w{number}") for number in range(20)]
    words = [reply.word for reply in await asyncio.gather(*calls)]
    assert words.count(ReplyCode.OK) == 1
    assert words.count(ReplyCode.STALE) == 19


async def test_a_stale_version_writes_nothing(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
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
    task = a2a_keys(keys)
    first = await write(scripts, task)
    await write(scripts, task, rule="1", write="later", row=b"oother")
    assert await write(scripts, task) == no(ReplyCode.TAKEN, *first.facts, b"oevent")
    assert len(await rows_of(scripts, task.events)) == 2


@pytest.mark.parametrize("rule", ["1", "open", "any"])
async def test_what_has_ended_takes_nothing_more(scripts: Scripts, keys: Keys, rule: str) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, state="3", phase="e", row=b"e")
    assert await write(scripts, task, rule=rule, write="late") == no(ReplyCode.DENIED, b"3")


async def test_a_plain_save_may_say_an_end_again(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, state="3", phase="e", row=b"e")
    again = await write(scripts, task, state="3", phase="e", row=b"e", rule="any", write="again")
    assert again.facts[0] == 2


async def test_a_cancel_needs_a_task_and_no_version(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    assert await write(scripts, task, rule="open") == no(ReplyCode.MISSING)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    canceled = {"state": "5", "phase": "e", "row": b"e", "owner": ""}
    reply = await write(scripts, task, rule="open", write="c", **canceled)
    assert reply.facts[0] == 3
    assert (await fields(scripts, task.lease))["owner"] == b""


async def test_an_event_alone_changes_nothing_but_the_version(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    event = {"rule": "open", "body": b"", "state": "", "place": b"= = =", "owner": "-"}
    assert await write(scripts, task, **event) == no(ReplyCode.MISSING)
    await write(scripts, task)
    assert (await write(scripts, task, **event, write="t")).facts[0] == 2
    found = await fields(scripts, task.task)
    assert (found["body"], found["state"], found["version"]) == (b"body", b"2", b"2")
    assert (await fields(scripts, task.lease))["owner"] == b"me"
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_a_lease_that_lives_lets_nobody_end_its_task(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    epoch = (await write(scripts, task)).facts[2]
    end = {"rule": "1", "write": "end", "state": "4", "phase": "e", "row": b"e", "owner": ""}
    assert (await write(scripts, task, **end, epoch=epoch)).word is ReplyCode.HELD


async def test_a_lease_that_ran_out_lets_one_end_its_task(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
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
    task = a2a_keys(keys)
    epoch = (await write(scripts, task)).facts[2]
    assert (await write(scripts, task, rule="1", write="w2")).facts[2] == epoch
    assert (await write(scripts, task, rule="2", write="w3", owner="other")).facts[2] > epoch


async def test_a_change_of_state_and_time_moves_the_places(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    place = f"c 3 1{'9' * 30}".encode()
    await write(scripts, task, rule="1", write="w2", state="3", phase="e", row=b"e", place=place)
    places: list[bytes] = await ask(scripts, "ZRANGE", task.books.index, 0, -1)
    assert len(places) == 4
    assert not any(TIMELESS.encode() in found or b"|2|" in found for found in places)


async def test_the_events_of_an_ended_task_live_no_longer_than_it_says(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, ttl_ms=100 * HOUR)
    await write(scripts, task, rule="1", write="e", state="3", phase="e", row=b"e", ttl_ms=HOUR)
    for life in await lives(scripts, task.task, task.events.rows, task.events.ids):
        assert life <= 1.5 * HOUR


async def test_the_oldest_events_are_dropped_by_number_never_by_age(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, ttl_ms=1_000)
    await clock_passes(scripts, await clock_ms(scripts) + 900)
    await write(scripts, task, rule="1", write="w2", ttl_ms=1_000)
    await clock_passes(scripts, await clock_ms(scripts) + 300)
    await write(scripts, task, rule="2", write="w3", ttl_ms=1_000)
    assert await rows_of(scripts, task.events) == [(1, "w"), (2, "w2"), (3, "w3")]
    for version in range(3, 40):
        await write(scripts, task, rule=str(version), write=f"n{version}", max_rows=10)
    kept = [n for n, _ in await rows_of(scripts, task.events)]
    assert kept == list(range(41 - len(kept), 41))
    assert 10 <= len(kept) <= 11


async def test_numbers_go_on_after_the_log_was_lost(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    await ask(scripts, "DEL", task.events.rows, task.events.ids)
    assert (await write(scripts, task, rule="2", write="w3")).facts[0] == 3
    assert await rows_of(scripts, task.events) == [(3, "w3")]
    gap = await scripts.read_log(
        task.events, after=1, after_ms=0, count=10, topic=None, most_bytes=1 << 20
    )
    assert gap.word is ReplyCode.GAP


async def test_numbers_go_on_after_the_logs_head_was_lost(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await ask(scripts, "DEL", task.events.ids)
    assert (await write(scripts, task, rule="1", write="w2")).facts[0] == 2
    assert await rows_of(scripts, task.events) == [(2, "w2")]


async def test_a_key_of_another_type_is_told(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await append(scripts, task.events, "x")
    await ask(scripts, "SET", task.task, "x", "PX", HOUR)
    with pytest.raises(Exception, match="another type"):
        await write(scripts, task)


async def test_a_task_is_created_once_without_a_version(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    items: dict[str, Any] = {"messages": [b"h0", b"h1"], "parts": [b"a0"]}
    assert await create(scripts, task, **items) == ok(0, 0, 0)
    assert await create(scripts, task, **items) == no(ReplyCode.TAKEN, 0, 0, 0, b"")
    assert (await create(scripts, task, "other", **items)).word is ReplyCode.STALE
    await write(scripts, task, rule="open", write="w", owner="", messages=[b"w"])
    # The creator's repeated call adds nothing.
    again = await create(scripts, task, **items)
    assert (again.word, again.facts[0]) == (ReplyCode.TAKEN, 1)
    found = (await scripts.read_a2a_task(task, messages=-1, whole=True)).facts
    assert found[3:5] == [[b"h0", b"h1", b"w"], [b"a0"]]
    assert await rows_of(scripts, task.events) == [(1, "w")]


async def test_of_many_creators_at_once_one_wins(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    calls = (create(scripts, task, str(n), messages=[b"h"]) for n in range(50))
    replies = await asyncio.gather(*calls)
    assert sorted(reply.word for reply in replies) == [ReplyCode.OK] + [ReplyCode.STALE] * 49
    assert (await scripts.read_a2a_task(task, messages=-1)).facts[3] == [b"h"]


async def test_what_an_earlier_task_of_the_id_left_is_not_the_new_ones(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await create(scripts, task, messages=[b"old"])
    await write(scripts, task, rule="open", owner="")
    await ask(scripts, "DEL", task.task)
    await create(scripts, task, "again")
    assert await rows_of(scripts, task.events) == []
    assert await lives(scripts, task.history) == [-2]


async def test_each_item_counts_once_whatever_came_in_between(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    change = {"rule": "open", "state": "", "owner": "-", "body": b"", "place": b"= = -"}
    await create(scripts, task)
    for _ in range(2):
        for n in range(3):
            await write(scripts, task, **change, write=f"w{n}", messages=[b"%d" % n])
    assert (await scripts.read_a2a_task(task, messages=-1)).facts[3] == [b"0", b"1", b"2"]


async def test_the_task_written_last_is_the_newest_also_if_the_clock_goes_back(
    scripts: Scripts, keys: Keys
) -> None:
    for name in ("0", "1", "2"):
        await create(scripts, a2a_keys(keys, name))
    ahead_us = await clock_ms(scripts) * 1000 + 10**12
    future = f"c new 11{ahead_us:026d}000".encode()
    change = {"rule": "open", "write": "w", "state": "", "owner": "-"}
    await write(scripts, a2a_keys(keys, "2"), **change, place=future)
    for name in ("0", "1"):
        await write(scripts, a2a_keys(keys, name), **change, place=b"= = -")
    places: list[bytes] = await ask(
        scripts, "ZRANGEBYLEX", keys.a2a_books(SCOPE).index, "[*|*|", "(*|*|2"
    )
    assert [place[4 + 31 :] for place in places] == [b"2", b"0", b"1"]
    updated = [
        int((await fields(scripts, a2a_keys(keys, name).task))["updated"]) for name in ("0", "1")
    ]
    assert updated == [ahead_us + 1, ahead_us + 2]


async def test_a_part_of_a_place_may_stay(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await create(scripts, task)
    for n, place in enumerate((b"= run =", b"d = =")):
        await write(scripts, task, rule="open", write=f"w{n}", owner="", place=place)
    place = (await ask(scripts, "HGETALL", task.books.places))[1]
    assert place.startswith(b"d run 11")
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_all_of_a_task_lives_as_long_and_shorter_once_it_has_ended(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await create(scripts, task, ttl_ms=HOUR // 4, messages=[b"h"], parts=[b"a"])
    await scripts.put_a2a_config(task, name="n", config=b"", most=0, ttl_ms=0)
    own = (task.task, task.history, task.artifacts, task.configs)
    assert all(HOUR // 5 < left <= HOUR // 4 for left in await lives(scripts, *own))
    await write(scripts, task, rule="open", owner="")
    assert all(HOUR * 0.9 < left <= HOUR for left in await lives(scripts, *own))
    end = {"state": "3", "phase": "e", "row": b"e", "owner": "", "ttl_ms": HOUR // 2}
    await write(scripts, task, rule="open", write="e", **end)
    assert all(HOUR * 0.4 < left <= HOUR // 2 for left in await lives(scripts, *own))
    books = task.books
    lists = (books.index, books.places, books.expiry)
    assert all(HOUR * 0.4 < left <= HOUR // 2 for left in await lives(scripts, *lists))


async def test_events_that_outlive_their_task_do_not_make_it_there(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    await create(scripts, task)
    event = {"rule": "open", "write": "e", "state": "", "owner": "-", "place": b"= = ="}
    assert (await write(scripts, task, **event)).word is ReplyCode.OK
    await ask(scripts, "DEL", task.task)
    assert await write(scripts, task, **event) == no(ReplyCode.MISSING)


async def test_the_servers_time_is_not_later_than_it_is_beside_tasks_of_the_future(
    scripts: Scripts, keys: Keys
) -> None:
    task = a2a_keys(keys)
    future = f"c new 11{(await clock_ms(scripts) + HOUR) * 1000:026d}000".encode()
    await create(scripts, a2a_keys(keys, "other"), place=future)
    await create(scripts, task, place=b"c new +")
    assert (
        int((await fields(scripts, task.task))["updated"]) <= (await clock_ms(scripts) + 1) * 1000
    )
    end = {"rule": "open", "write": "e", "row": b"e", "place": b"= ended -"}
    await write(scripts, task, **end)
    assert int((await fields(scripts, task.task))["updated"]) > (await clock_ms(scripts)) * 1000
