"""Order, cursors, repeats and names: what a host relies on, with both sets of classes.

| trap | test |
| --- | --- |
| history by time, then by insertion; all else by insertion | `..._order...` |
| planner clocks are monotonic: they jump back on another host | `..._clock...` |
| fire-and-forget saves keep the order of the calls | `..._unawaited...` |
| a cursor is exclusive, and looked up in the whole session | `..._cursor...` |
| an unknown, empty, trimmed or foreign cursor is no cursor | `..._no_cursor...` |
| a limit keeps the newest, in ascending order | `..._limit...` |
| repeated rows stand once, by id or content; equal planner events do not | `..._once...` |
| ``trace_id=None`` is read as ``__global__`` | `..._global...` |
| a trace of two sessions is two trajectories | `..._two_sessions...` |
| a saved task moves nowhere; a trace saved again moves to the front | `..._saved_again...` |
| keys of every character, and ``a:b`` + ``c`` against ``a`` + ``b:c`` | `..._apart...` |
| bindings: no context is not an empty one, None is no wildcard | `..._binding...` |
| steering is limited, not validated | `..._validated...` |
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from redis_state import Settings
from tests.support.hosts import KINDS, Host, open_host
from tests.support.samples import LONG_ID, ODD_IDS


async def test_history_is_in_order_of_time_and_then_of_insertion(host: Host) -> None:
    saved = [host.event(ts, node_id=str(n)) for n, ts in enumerate([3.0, 1.0, 2.0, 1.0, 3.0])]
    for event in saved:
        await host.store.save_event(event)
    found = await host.store.load_history("trace")
    assert [event.node_id for event in found] == ["1", "3", "2", "0", "4"]


async def test_rows_are_in_the_order_of_insertion_whatever_their_clock_says(host: Host) -> None:
    # A planner's ts is time.monotonic(): resumed on a host that started later, it jumps back.
    clocks = [9e5, 9e5 + 1, 3.0, 3.5, -1.0, 3.0]
    for ts in clocks:
        await host.store.save_planner_event("trace", host.planner_event(ts))
    assert [each.ts for each in await host.store.list_planner_events("trace")] == clocks


async def test_equal_planner_events_are_all_kept_and_not_only_once(host: Host) -> None:
    event = host.planner_event(extra={"a": 1})
    for _ in range(3):
        await host.store.save_planner_event("trace", event)
    assert await host.store.list_planner_events("trace") == [event] * 3


async def test_unawaited_saves_keep_the_order_of_the_calls(host: Host) -> None:
    calls = [asyncio.create_task(host.store.save_update(host.update(str(n)))) for n in range(120)]
    calls += [
        asyncio.create_task(host.store.save_steering(host.steering(str(n)))) for n in range(120)
    ]
    calls += [
        asyncio.create_task(host.store.save_planner_event("trace", host.planner_event(float(n))))
        for n in range(120)
    ]
    await asyncio.gather(*calls)
    names = [str(n) for n in range(120)]
    assert [each.update_id for each in await host.store.list_updates("session")] == names
    assert [each.event_id for each in await host.store.list_steering("session")] == names
    found = await host.store.list_planner_events("trace")
    assert [each.ts for each in found] == [float(n) for n in range(120)]


async def rows(host: Host, kind: str, **options: Any) -> list[str]:
    if kind == "updates":
        return [each.update_id for each in await host.store.list_updates("session", **options)]
    return [each.event_id for each in await host.store.list_steering("session", **options)]


async def fill(host: Host, session_id: str = "session", prefix: str = "") -> None:
    for n in range(10):
        fields = {"session_id": session_id, "task_id": f"task-{n % 2}"}
        await host.store.save_update(host.update(f"{prefix}{n}", **fields))
        await host.store.save_steering(host.steering(f"{prefix}{n}", **fields))


LISTS = pytest.mark.parametrize("kind", ["updates", "steering"])


@LISTS
async def test_a_cursor_is_exclusive_and_found_in_the_whole_session(host: Host, kind: str) -> None:
    await fill(host)
    assert await rows(host, kind, since_id="6") == ["7", "8", "9"]
    assert await rows(host, kind, since_id="9") == []
    # Row 4 is of the other task: it is a cursor all the same.
    assert await rows(host, kind, since_id="4", task_id="task-1") == ["5", "7", "9"]


@LISTS
@pytest.mark.parametrize("cursor", [None, "", "unknown", "other-3", "1-1", "\x00", "\ud800"])
async def test_what_is_not_of_this_session_is_no_cursor(
    host: Host, kind: str, cursor: str | None
) -> None:
    await fill(host)
    await fill(host, "another", "other-")
    assert await rows(host, kind, since_id=cursor) == [str(n) for n in range(10)]


@LISTS
@pytest.mark.parametrize("name", KINDS)
async def test_what_was_trimmed_is_no_cursor(settings: Settings, kind: str, name: str) -> None:
    bounds = {"max_updates_per_session": 4, "max_steering_events_per_session": 4}
    async with open_host(name, settings, **bounds) as host:
        await fill(host)
        assert await rows(host, kind, since_id="2") == ["6", "7", "8", "9"]
        assert await rows(host, kind, since_id="7") == ["8", "9"]


@LISTS
async def test_a_limit_keeps_the_newest_after_cursor_and_filter(host: Host, kind: str) -> None:
    await fill(host)
    assert await rows(host, kind, limit=3) == ["7", "8", "9"]
    assert await rows(host, kind, limit=2, since_id="1") == ["8", "9"]
    assert await rows(host, kind, limit=2, since_id="1", task_id="task-0") == ["6", "8"]


async def test_rows_stand_once_by_their_id_and_events_by_their_content(host: Host) -> None:
    store = host.store
    for content in ("first", "second"):
        await store.save_update(host.update("u", content))
        await store.save_steering(host.steering("e", {"text": content}))
    assert [each.content for each in await store.list_updates("session")] == ["first"]
    assert [each.payload for each in await store.list_steering("session")] == [{"text": "first"}]
    for payload in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}):
        await store.save_event(host.event(payload=payload))
    assert len(await store.load_history("trace")) == 2


async def test_events_with_objects_stand_once_wherever_the_objects_are(host: Host) -> None:
    class Address:
        pass

    objects = [Address(), Address()]
    for each in objects:
        payload = {"object": each, "set": {"x", "y"}, "type": Address}
        await host.store.save_event(host.event(payload=payload))
    (found,) = await host.store.load_history("trace")
    assert found.payload["object"].endswith("Address object>")


async def test_events_of_no_trace_are_global(host: Host) -> None:
    await host.store.save_event(host.event(trace_id=None))
    await host.store.save_event(host.event(2.0))
    found = await host.store.load_history("__global__")
    assert [each.ts for each in found] == [1.0]
    assert await host.store.load_history(None) == found


async def test_a_trace_of_two_sessions_is_two_trajectories(host: Host) -> None:
    for session_id in ("one", "two"):
        trajectory = host.types.Trajectory(query=session_id)
        await host.store.save_trajectory("trace", session_id, trajectory)
    for session_id in ("one", "two"):
        found = await host.store.get_trajectory("trace", session_id)
        assert found.query == session_id
        assert await host.store.list_traces(session_id) == ["trace"]
    assert await host.store.get_trajectory("trace", "three") is None


async def test_a_task_saved_again_keeps_its_place_and_a_trace_takes_the_first(host: Host) -> None:
    for name in ("a", "b", "c", "a"):
        await host.store.save_task(host.task(name))
        await host.store.save_trajectory(name, "session", host.types.Trajectory(query="q"))
    assert [each.task_id for each in await host.store.list_tasks("session")] == ["a", "b", "c"]
    assert await host.store.list_traces("session") == ["a", "c", "b"]
    assert await host.store.list_traces("session", limit=2) == ["a", "c"]


async def test_ids_that_joined_would_be_the_same_are_apart(host: Host) -> None:
    store, pairs = host.store, [("a:b", "c"), ("a", "b:c"), ("a:b:c", ""), ("", "a:b:c")]
    for n, (one, other) in enumerate(pairs):
        await store.save_task(host.task(other, one, priority=n))
        await store.save_update(host.update(f"{n}", n, session_id=one, task_id=other))
        await store.save_trajectory(other, one, host.types.Trajectory(query=str(n)))
        await store.save_remote_binding(
            host.binding(other, trace_id="t", context_id=one, router_session_id=f"{one}\x00")
        )
    for n, (one, other) in enumerate(pairs):
        assert [each.priority for each in await store.list_tasks(one)] == [n]
        assert [each.content for each in await store.list_updates(one, task_id=other)] == [n]
        assert (await store.get_trajectory(other, one)).query == str(n)
        (found,) = await store.list_bindings(router_session_id=f"{one}\x00")
        assert (found.context_id, found.task_id) == (one, other)


NAMES = [*ODD_IDS, *(f"k{chr(n)}" for n in range(256)), f"{LONG_ID}\u2028"]


async def test_keys_of_every_character_are_apart(host: Host) -> None:
    store = host.store
    numbered = list(enumerate(NAMES))
    await asyncio.gather(
        *(store.save_memory_state(name, {"n": n}) for n, name in numbered),
        *(store.save_planner_state(name, {"n": n}) for n, name in numbered),
        *(store.save_planner_event(name, host.planner_event(float(n))) for n, name in numbered),
    )
    wanted = [{"n": n} for n, _ in numbered]
    assert await asyncio.gather(*map(store.load_memory_state, NAMES)) == wanted
    assert await asyncio.gather(*map(store.load_planner_state, NAMES)) == wanted
    found = await asyncio.gather(*map(store.list_planner_events, NAMES))
    assert [[each.ts for each in events] for events in found] == [[float(n)] for n, _ in numbered]


async def test_traces_of_every_character_are_apart(host: Host) -> None:
    events = [host.event(float(n), trace_id=name) for n, name in enumerate(NAMES)]
    await asyncio.gather(*map(host.store.save_event, events))
    found = await asyncio.gather(*map(host.store.load_history, NAMES))
    assert [[each.ts for each in of_one] for of_one in found] == [[each.ts] for each in events]


async def test_bindings_match_exactly_and_the_newest_live_one_is_found(host: Host) -> None:
    store = host.store
    await store.save_remote_binding(host.binding("none", context_id=None))
    await store.save_remote_binding(host.binding("none", context_id=""))
    await store.save_remote_binding(host.binding("mine", tenant_id="t", user_id="u"))
    question = {
        "router_session_id": "session",
        "agent_url": "http://agent",
        "remote_skill": "search",
    }

    async def found(**who: str) -> Any:
        binding = await store.find_binding(**question, **who)
        return None if binding is None else (binding.task_id, binding.context_id)

    assert await found() == ("none", "")
    assert await found(tenant_id="t", user_id="u") == ("mine", "context")
    assert await found(tenant_id="t") is None
    await store.save_remote_binding(host.binding("none", context_id=None))
    assert await found() == ("none", "")  # saving again does not make it newer
    await store.mark_binding_terminal(trace_id="trace", context_id="", task_id="none")
    await store.mark_binding_terminal(trace_id="trace", context_id="", task_id="unknown")
    assert await found() == ("none", None)
    listed = await store.list_bindings(router_session_id="session")
    assert [each.is_terminal for each in listed] == [False, True, False]
    assert await store.find_binding(**{**question, "remote_skill": "Search"}) is None


async def test_steering_is_limited_and_not_validated(host: Host) -> None:
    types = host.types
    for n, kind in enumerate(types.SteeringEventType):
        await host.store.save_steering(host.steering(str(n), {"odd": "x" * 5000}, event_type=kind))
    found = await host.store.list_steering("session")
    assert [each.event_type for each in found] == list(types.SteeringEventType)
    assert {len(each.payload["odd"]) for each in found} == {4096}
    deep: dict[str, Any] = {}
    for _ in range(20):
        deep = {"deeper": deep}
    wide = {str(n): n for n in range(100)}
    await host.store.save_steering(host.steering("deep", deep))
    await host.store.save_steering(host.steering("wide", wide))
    await host.store.save_steering(host.steering("large", {"list": ["x" * 4000] * 40}))
    *_, large = await host.store.list_steering("session")
    assert large.payload["truncated"] is True
    sanitised = [each.payload for each in await host.store.list_steering("session")]
    await asyncio.gather(
        *(host.store.save_steering(host.steering(f"again-{n}", p)) for n, p in enumerate(sanitised))
    )
    again = await host.store.list_steering("session", since_id="large")
    assert [each.payload for each in again] == sanitised


async def test_pages_forward_skip_nothing(host: Host) -> None:
    await fill(host)
    read: list[str] = []
    after: str | None = None
    while True:
        page = await host.store.read_updates("session", after=after, limit=3)
        read += [each.update_id for each in page.values]
        after = page.cursor
        if page.at_end:
            break
    assert [int(b) - int(a) for a, b in pairwise(read)] == [1] * 9
