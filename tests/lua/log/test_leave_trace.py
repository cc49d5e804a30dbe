from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import trace_keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import HOUR, ask, lives, ok

Named = tuple[str, str, bytes]


async def fill(scripts: Scripts, keys: Keys, *sessions: str) -> list[Named]:
    """Write two events, a planner event, something unreadable and two bindings of a trace."""
    trace = trace_keys(keys)
    await append(scripts, trace.events, "a", "b")
    await append(scripts, trace.planner_events, "a")
    await scripts.set_aside(trace.unreadable, place="p", note=b"{}", most=9, ttl_ms=HOUR)
    for session in sessions:
        await scripts.add_member(trace.sessions, member=session, ttl_ms=HOUR)
    named: list[Named] = []
    for name in ("own", ""):
        key, write = keys.binding("t", name or "other"), f"write of {name}"
        await scripts.put_record(
            key, {}, write=write, ttl_ms=HOUR, index=trace.bindings, member=name
        )
        named.append((key, name, write.encode()))
    return named


async def leave(
    scripts: Scripts,
    keys: Keys,
    session: str,
    bindings: Sequence[Named] = (),
    own: int = 0,
    *,
    keeps: bool = False,
) -> Reply:
    """Take a session out of the trace."""
    return await scripts.leave_trace(
        trace_keys(keys), session=session, keeps=keeps, own=own, bindings=bindings
    )


async def test_a_trace_that_stays_has_its_events_when_no_session_uses_it(
    scripts: Scripts, keys: Keys
) -> None:
    trace, named = trace_keys(keys), await fill(scripts, keys, "one")
    for _ in range(2):
        assert await leave(scripts, keys, "one", named, own=1, keeps=True) == ok(1)
        assert [row for _, row in await rows_of(scripts, trace.events)] == ["a", "b"]
        assert (await lives(scripts, named[0][0]))[0] == -2
        assert (await lives(scripts, named[1][0]))[0] > 0


async def test_the_last_session_takes_all_with_it_and_numbers_go_on(
    scripts: Scripts, keys: Keys
) -> None:
    trace, named = trace_keys(keys), await fill(scripts, keys, "one")
    for _ in range(2):
        assert await leave(scripts, keys, "one", named, own=1) == ok(0)
        left = (trace.sessions, trace.unreadable, trace.bindings, *(key for key, _, _ in named))
        assert await lives(scripts, *left) == [-2] * 5
        assert await rows_of(scripts, trace.events) == []
        assert await rows_of(scripts, trace.planner_events) == []
    assert await append(scripts, trace.events, "a") == ok(1, 3)


async def test_a_session_takes_only_its_own_bindings_while_another_uses_the_trace(
    scripts: Scripts, keys: Keys
) -> None:
    trace, named = trace_keys(keys), await fill(scripts, keys, "one", "\ud800")
    assert await leave(scripts, keys, "one", named, own=1) == ok(1)
    assert await leave(scripts, keys, "of nobody", named) == ok(1)
    assert [row for _, row in await rows_of(scripts, trace.events)] == ["a", "b"]
    assert (await lives(scripts, trace.unreadable))[0] > 0
    own, other = await lives(scripts, *(key for key, _, _ in named))
    assert own == -2
    assert other > 0
    assert await ask(scripts, "ZRANGE", trace.bindings, 0, -1) == [b"\xff"]
    assert await leave(scripts, keys, "\ud800", named[1:]) == ok(0)
    assert await lives(scripts, trace.unreadable, trace.bindings) == [-2, -2]


async def test_a_session_whose_time_is_over_uses_the_trace_no_more(
    scripts: Scripts, keys: Keys
) -> None:
    trace = trace_keys(keys)
    await fill(scripts, keys, "one", "two")
    now = int((await ask(scripts, "TIME"))[0]) * 1_000_000
    await ask(scripts, "ZADD", trace.sessions, now - 1, "two")
    assert await leave(scripts, keys, "one") == ok(0)
    assert await rows_of(scripts, trace.events) == []


async def test_what_is_saved_again_after_it_was_read_stays(scripts: Scripts, keys: Keys) -> None:
    trace, named = trace_keys(keys), await fill(scripts, keys, "one")
    for key, name, _ in named:
        await scripts.put_record(
            key, {}, write="later", ttl_ms=HOUR, index=trace.bindings, member=name
        )
    assert await leave(scripts, keys, "one", named, own=1) == ok(0)
    assert all(life > 0 for life in await lives(scripts, *(key for key, _, _ in named)))
    assert await ask(scripts, "ZCARD", trace.bindings) == 2


async def test_of_two_sessions_that_leave_at_once_one_is_the_last(
    scripts: Scripts, keys: Keys
) -> None:
    names = [f"s{number}" for number in range(9)]
    await fill(scripts, keys, *names)
    replies = await asyncio.gather(*(leave(scripts, keys, name) for name in names))
    assert sorted(reply.facts[0] for reply in replies) == list(range(9))
