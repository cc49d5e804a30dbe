from __future__ import annotations

from typing import Any

from redis_state.primitives.record import Records
from redis_state.scripts import AdkKeys, Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import adk_keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def write(scripts: Scripts, keys: AdkKeys, mark: str, **more: Any) -> Reply:
    """Write with what most calls have."""
    given: dict[str, Any] = {
        "expected": 0,
        "updated": "1.0",
        "ttl_ms": HOUR,
        "max_rows": 0,
        "row_id": b"",
        "row": b"",
        "of_session": (),
        "of_user": (),
        "of_app": (),
    }
    return await scripts.write_adk_session(keys, write=mark, **{**given, **more})


async def test_an_event_and_what_it_changes_are_one_step(scripts: Scripts, keys: Keys) -> None:
    each = adk_keys(keys)
    states = {
        "of_session": (b"s:a", b"1"),
        "of_user": (b"s:b", b"2"),
        "of_app": (b"s:c", b"3"),
    }
    for _ in range(2):
        assert await write(scripts, each, "w1", **states) == ok(1)
    assert await write(scripts, each, "other") == no(ReplyCode.STALE, 1, b"w1")
    event = {"row_id": b"e1", "row": b"row", "updated": "2.0", "expected": 1}
    many = [part for n in range(500) for part in (b"s:%d" % n, b"%d" % n)]
    for _ in range(2):
        assert await write(scripts, each, "w2", **event, of_user=many) == ok(2)
    # The event decides before the version: it may come again under an old one.
    assert await write(scripts, each, "w3", **event) == no(ReplyCode.AGAIN, 2, b"w2", 1)
    stale = {**event, "row_id": b"e2", "of_app": (b"s:c", b"lost")}
    assert await write(scripts, each, "w4", **stale) == no(ReplyCode.STALE, 2, b"w2")
    session = await fields(scripts, each.session)
    wanted = {"version": b"2", "write": b"w2", "updated": b"2.0", "end": b"1", "last": b"e1"}
    assert session == {**wanted, "s:a": b"1", "order": session["order"]}
    assert len(await fields(scripts, each.user)) == 501
    assert await fields(scripts, each.app) == {"s:c": b"3"}
    names = [each.session, each.user, each.app, each.index, each.own]
    assert all(0 < left <= HOUR for left in await lives(scripts, *names))
    assert all(HOUR < left <= 2 * HOUR for left in await lives(scripts, each.rows, each.ids))
    assert [page async for page in Records(scripts).pages(each.index)] == [["u:h"]]


async def test_as_many_names_may_be_set_as_a_state_has(scripts: Scripts, keys: Keys) -> None:
    """Lua's stack has room for some thousand arguments."""
    each = adk_keys(keys)
    many = [part for n in range(5_000) for part in (b"s:%d" % n, b"%d" % n)]
    states = {"of_session": many, "of_user": many, "of_app": many}
    assert await write(scripts, each, "w1", **states) == ok(1)
    for key in (each.user, each.app):
        found = await fields(scripts, key)
        assert len(found) == 5_000
        assert found["s:4999"] == b"4999"
    assert (await fields(scripts, each.session))["s:4999"] == b"4999"


async def test_a_session_that_is_gone_takes_no_event(scripts: Scripts, keys: Keys) -> None:
    each = adk_keys(keys)
    event = {"row_id": b"e", "row": b"row", "expected": 1, "of_app": (b"s:c", b"3")}
    assert await write(scripts, each, "w", **event) == no(ReplyCode.MISSING)
    assert await lives(scripts, each.rows, each.app, each.session) == [-2, -2, -2]


async def test_a_deleted_session_leaves_what_it_shares(scripts: Scripts, keys: Keys) -> None:
    each, other = adk_keys(keys), adk_keys(keys, "other")
    for one in (each, other):
        await write(scripts, one, "w1", of_user=(b"s:b", b"2"), of_app=(b"s:c", b"3"))
        await write(scripts, one, "w2", row_id=b"e", row=b"row", expected=1)
    # Its hash has expired before its events: what is created anew has none of them.
    await ask(scripts, "DEL", each.session)
    assert await write(scripts, each, "w3") == ok(1)
    assert await lives(scripts, each.rows, each.ids) == [-2, -2]
    assert await scripts.delete_adk_session(each) == ok(1)
    assert await scripts.delete_adk_session(each) == ok(0)
    assert await lives(scripts, each.session) == [-2]
    assert [page async for page in Records(scripts).pages(each.own)] == [["u:other"]]
    assert await scripts.delete_adk_session(other) == ok(1)
    left = [other.session, other.rows, other.ids, other.index, other.own]
    assert await lives(scripts, *left) == [-2] * 5
    assert await fields(scripts, each.app) == {"s:c": b"3"}


async def test_names_come_in_pages_and_none_is_left_out(scripts: Scripts, keys: Keys) -> None:
    records, index = Records(scripts), keys.tasks("s")
    for n in range(10):
        await ask(scripts, "ZADD", index, n // 4, f"m{n}")
    await ask(scripts, "PEXPIRE", index, HOUR)
    for size in (1, 2, 3, 4, 5, 10, 11):
        pages = [page async for page in records.pages(index, size=size)]
        assert [name for page in pages for name in page] == [f"m{n}" for n in range(10)]
        assert max(map(len, pages)) <= size
    assert [page async for page in records.pages(keys.tasks("none"))] == []
