from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts, Word
from tests.a2a_rows import SCOPE, indexed, page, version_keys, write
from tests.looking import HOUR, ask, clock_ms, clock_passes, no


def timed(number: int) -> str:
    return f"1{number:030d}"


async def fill(scripts: Scripts, keys: Keys, count: int, **changes: int) -> None:
    for number in range(count):
        place = f"c{number % 2} 2 {timed(number)}".encode()
        task = version_keys(keys, f"t{number}")
        await write(scripts, task, place=place, body=f"b{number}".encode(), **changes)


async def test_an_empty_list_is_read_at_once(scripts: Scripts, keys: Keys) -> None:
    assert await page(scripts, keys) == [0, 0]


async def test_a_page_must_name_its_tasks(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 1)
    reply = await scripts.list_a2a_versions(
        keys.a2a_version_books(SCOPE), [], asked=b"*|*|", since=b"0", after=b"", size=9, known=[]
    )
    assert reply == no(Word.AGAIN, timed(0).encode() + b"t0")


async def test_pages_go_down_from_the_newest_and_count_all(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    total, more, *tasks = await page(scripts, keys, size=2)
    assert (total, more, [task[3] for task in tasks]) == (5, 1, [b"b4", b"b3"])
    total, more, *tasks = await page(scripts, keys, size=3, after=tasks[-1][0])
    assert (total, more, [task[3] for task in tasks]) == (5, 0, [b"b2", b"b1", b"b0"])


async def test_filters_are_prefixes(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    assert (await page(scripts, keys, asked=b"c1|*|"))[0] == 2
    assert (await page(scripts, keys, asked=b"c1|2|", since=timed(3).encode()))[0] == 1
    assert (await page(scripts, keys, asked=b"*|3|"))[0] == 0


async def test_what_has_expired_is_swept_and_not_counted(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 3, ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    await write(scripts, version_keys(keys, "lives"), ttl_ms=HOUR)
    assert (await page(scripts, keys))[0] == 1
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_more_than_a_sweep_takes_has_expired(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 1)
    books = keys.a2a_version_books(SCOPE)
    for number in range(450):
        await ask(scripts, "ZADD", books.expiry, 1, f"gone{number}")
    assert (await page(scripts, keys))[0] == 1
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_a_task_that_was_evicted_leaves_the_list(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 2)
    await ask(scripts, "DEL", version_keys(keys, "t1").task)
    total, _, *tasks = await page(scripts, keys)
    assert (total, [task[3] for task in tasks]) == (1, [b"b0"])
