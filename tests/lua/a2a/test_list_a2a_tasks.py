from __future__ import annotations

from collections.abc import Sequence

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import SCOPE, a2a_keys, indexed, page, write
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, no, ok


def timed(number: int) -> str:
    return f"1{number:030d}"


async def fill(scripts: Scripts, keys: Keys, count: int, **changes: int) -> None:
    for number in range(count):
        place = f"c{number % 2} 2 {timed(number)}".encode()
        task = a2a_keys(keys, f"t{number}")
        await write(scripts, task, place=place, body=f"b{number}".encode(), **changes)


async def look(
    scripts: Scripts,
    keys: Keys,
    known: Sequence[bytes],
    *,
    size: int,
    settle: bool = False,
    after: str = "",
) -> Reply:
    return await scripts.list_a2a_tasks(
        keys.a2a_books(SCOPE),
        [keys.a2a_task(SCOPE, name.decode()) for name in known],
        prefix=b"*|*|",
        since=b"0",
        after=after.encode(),
        size=size,
        most_bytes=1 << 20,
        whole=True,
        settle=settle,
        known=known,
    )


async def test_an_empty_list_is_read_at_once(scripts: Scripts, keys: Keys) -> None:
    assert await page(scripts, keys) == [0, 0, 0]


async def test_a_page_must_name_its_tasks(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 1)
    assert await look(scripts, keys, [], size=9) == no(ReplyCode.AGAIN, b"t0")


async def test_a_task_that_moved_up_meanwhile_is_known_by_its_id(
    scripts: Scripts, keys: Keys
) -> None:
    await fill(scripts, keys, 4)
    known = (await look(scripts, keys, [], size=2)).facts
    assert known == [b"t3", b"t2", b"t1", b"t0"]
    moved = f"c 2 {timed(9)}".encode()
    await write(scripts, a2a_keys(keys, "t0"), rule="1", write="w2", place=moved)
    total, others, more, *tasks = (await look(scripts, keys, known, size=2)).facts
    assert (total, others, more, [task[0][31:] for task in tasks]) == (4, 0, 1, [b"t0", b"t3"])


async def test_what_comes_again_and_again_is_left_out_in_the_end(
    scripts: Scripts, keys: Keys
) -> None:
    await fill(scripts, keys, 40)
    known = [b"t38", b"t37", b"t35"]
    assert (await look(scripts, keys, known, size=2)).word is ReplyCode.AGAIN
    for size, settled, rest in ((2, known[:2], 1), (3, known, 1), (9, known, 1)):
        total, others, more, *tasks = (
            await look(scripts, keys, known, size=size, settle=True)
        ).facts
        assert (total, others, more, [task[0][31:] for task in tasks]) == (40, 0, rest, settled)
    # With nothing that is known there would be no place to go on after.
    assert (await look(scripts, keys, [b"x"], size=9, settle=True)).word is ReplyCode.AGAIN
    reply = await look(scripts, keys, [b"x"], size=9, settle=True, after=timed(0) + "t0")
    assert reply == ok(40, 0, 0)


async def test_pages_go_down_from_the_newest_and_count_all(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    total, others, more, *tasks = await page(scripts, keys, size=2)
    assert (total, others, more, [task[3] for task in tasks]) == (5, 0, 1, [b"b4", b"b3"])
    total, others, more, *tasks = await page(scripts, keys, size=3, after=tasks[-1][0])
    assert (total, others, more, [task[3] for task in tasks]) == (5, 0, 0, [b"b2", b"b1", b"b0"])


async def test_a_page_ends_at_so_many_bytes(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    found, after = list[bytes](), b""
    for _ in range(3):
        total, _, more, *tasks = await page(scripts, keys, after=after, most_bytes=3)
        found += [task[3] for task in tasks]
        assert (total, more) == (5, len(found) < 5)
        after = tasks[-1][0]
    assert found == [b"b4", b"b3", b"b2", b"b1", b"b0"]


async def test_filters_are_prefixes(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    assert (await page(scripts, keys, prefix=b"c1|*|"))[0] == 2
    assert (await page(scripts, keys, prefix=b"c1|2|", since=timed(3).encode()))[0] == 1
    assert (await page(scripts, keys, prefix=b"*|3|"))[0] == 0


async def test_what_has_expired_is_swept_and_not_counted(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 3, ttl_ms=50)
    await clock_passes(scripts, await clock_ms(scripts) + 51)
    await write(scripts, a2a_keys(keys, "lives"), ttl_ms=HOUR)
    assert (await page(scripts, keys))[0] == 1
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_more_than_a_sweep_takes_has_expired(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 1)
    books = keys.a2a_books(SCOPE)
    for number in range(450):
        await ask(scripts, "ZADD", books.expiry, 1, f"gone{number}")
    assert (await page(scripts, keys))[0] == 1
    assert await indexed(scripts, keys) == [4, 1, 1]


async def test_a_task_that_was_evicted_leaves_the_list(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 2)
    await ask(scripts, "DEL", a2a_keys(keys, "t1").task)
    total, _, _, *tasks = await page(scripts, keys)
    assert (total, [task[3] for task in tasks]) == (1, [b"b0"])


async def test_those_in_another_state_are_counted_too(scripts: Scripts, keys: Keys) -> None:
    for number, state in enumerate(("a", "b", "b", "c")):
        place = f"c{number % 2} {state} {timed(number)}".encode()
        await write(scripts, a2a_keys(keys, f"t{number}"), place=place)
    assert await page(scripts, keys, prefix=b"*|b|", size=0, whole=False) == [2, 2, 1]
    assert await page(scripts, keys, prefix=b"c1|b|", size=0, whole=False) == [1, 1, 1]
    assert await page(scripts, keys, prefix=b"*|x|", size=0, whole=False) == [0, 4, 0]


async def test_places_alone_need_no_second_call(scripts: Scripts, keys: Keys) -> None:
    await fill(scripts, keys, 5)
    reply = await scripts.list_a2a_tasks(
        keys.a2a_books(SCOPE),
        prefix=b"*|*|",
        since=b"0",
        after=b"",
        size=2,
        most_bytes=1,
        whole=False,
    )
    assert reply == ok(5, 0, 1, [f"{timed(4)}t4".encode()], [f"{timed(3)}t3".encode()])
    rest = await page(scripts, keys, after=reply.facts[-1][0], size=9, whole=False)
    assert rest[:3] == [5, 0, 0]
    assert [place[31:] for (place,) in rest[3:]] == [b"t2", b"t1", b"t0"]
