"""What is damaged, or written by a later version, does not keep anybody from the rest."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state import CommandRefused, RedisStateStore
from redis_state.models import Trajectory
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.store import HostTypes
from redis_state.transport.key_groups import LogKeys
from tests.support.samples import (
    admin,
    binding,
    event,
    own_server,
    planner_event,
    steering,
    task,
    update,
)

DAMAGE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"\x80garbage", "not UTF-8"),
    "cut off": (b'[1,"tra', "not JSON at character 3"),
    "no row": (b'{"a":1}', "not a row"),
    "an empty row": (b"[]", "not a row"),
    "a later version": (b'[2,"trace"]', "row version 2 is not 1"),
    "a foreign version": (b'["s3cr3t"]', "row version of no known kind is not 1"),
    "a short row": (b"[1,null]", "a row of 1 values"),
    "wrong kinds": (b'[1,{"a":"s3cr3t"},[],[],[],[],[],[],[],[],[],[]]', ""),
}


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> tuple[bytes, str]:
    return DAMAGE[request.param]


async def _plant(store: RedisStateStore, log: LogKeys, data: bytes, topic: str | None) -> None:
    """Put a row into a log as another version of this library would."""
    bounds = Bounds(1000, 60_000)
    await Log(store.base.scripts, log, bounds).append([(b"planted", data)], topic=topic)


async def _check(
    store: RedisStateStore, damage: tuple[bytes, str], place: str, **scope: str
) -> None:
    """See that one thing was counted and kept aside with its reason."""
    (aside,) = await store.unreadable(**scope)
    assert aside.place.startswith(place)
    assert damage[1] in aside.reason
    assert aside.row == damage[0].decode("utf-8", "backslashreplace")
    assert "s3cr3t" not in aside.reason
    assert "s3cr3t" not in repr(aside)
    assert (await store.health()).unreadable_rows == 1


async def test_an_unreadable_event_is_left_out_and_kept_aside(
    store: RedisStateStore, damage: tuple[bytes, str]
) -> None:
    await store.save_event(event(1.0))
    await _plant(store, store.base.keys.events("trace"), damage[0], None)
    await store.save_event(event(2.0))
    assert await store.load_history("trace") == [event(1.0), event(2.0)]
    await _check(store, damage, "event 2-", trace_id="trace")


async def test_an_unreadable_planner_event_is_left_out_and_kept_aside(
    store: RedisStateStore, damage: tuple[bytes, str]
) -> None:
    await store.save_planner_event("trace", planner_event(1.0))
    await _plant(store, store.base.keys.planner_events("trace"), damage[0], None)
    await store.save_planner_event("trace", planner_event(2.0))
    expected = [planner_event(1.0), planner_event(2.0)]
    assert await store.list_planner_events("trace") == expected
    await _check(store, damage, "planner event 2-", trace_id="trace")


async def test_an_unreadable_update_is_left_out_everywhere_and_counted_once(
    store: RedisStateStore, damage: tuple[bytes, str]
) -> None:
    saved = [update("u1"), update("u2")]
    await store.save_update(saved[0])
    await _plant(store, store.base.keys.updates("session"), damage[0], "task")
    await store.save_update(saved[1])
    assert await store.list_updates("session") == saved
    assert await store.list_updates("session", task_id="task", since_id="u1") == saved[1:]
    first = await store.read_updates("session", limit=2)
    assert first.values == saved[:1]
    assert not first.at_end
    assert (await store.read_updates("session", after=first.cursor)).values == saved[1:]
    entries = store.watch_updates("session")
    assert [(await anext(entries)).value, (await anext(entries)).value] == saved
    await entries.aclose()
    await _check(store, damage, "update 2-", session_id="session")


async def test_an_unreadable_steering_event_is_left_out_and_kept_aside(
    store: RedisStateStore, damage: tuple[bytes, str]
) -> None:
    saved = [steering("e1"), steering("e2")]
    await store.save_steering(saved[0])
    await _plant(store, store.base.keys.steering("session"), damage[0], "task")
    await store.save_steering(saved[1])
    assert await store.list_steering("session") == saved
    await _check(store, damage, "steering 2-", session_id="session")


BROKEN: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"\x80garbage", "not UTF-8"),
    "cut off": (b'{"a":"s3cr3t', "not JSON"),
    "no object": (b'["s3cr3t"]', "not an object"),
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest) -> tuple[bytes, str]:
    return BROKEN[request.param]


async def test_an_unreadable_memory_state_is_none_and_kept_aside(
    store: RedisStateStore, broken: tuple[bytes, str]
) -> None:
    await store.save_memory_state("key", {"a": 1})
    await admin(store, "HSET", store.base.keys.memory("key"), "document", broken[0])
    assert await store.load_memory_state("key") is None
    assert await store.load_memory_state("key") is None
    await _check(store, broken, "memory", memory_key="key")
    await store.save_memory_state("key", {"a": 2})
    assert await store.load_memory_state("key") == {"a": 2}


async def test_an_unreadable_task_is_left_out_and_kept_aside(
    store: RedisStateStore, broken: tuple[bytes, str]
) -> None:
    saved = [task(name) for name in "abc"]
    for each in saved:
        await store.save_task(each)
    await admin(store, "HSET", store.tasks.keys("session", "b").task, "document", broken[0])
    assert await store.list_tasks("session") == [saved[0], saved[2]]
    assert await store.tasks.load("session", "b") is None
    await _check(store, broken, "task b", session_id="session")


@pytest.mark.parametrize(
    ("name", "value"),
    [("status", b"s3cr3t"), ("priority", b"x"), ("result", b"{"), ("order", b"x")],
)
async def test_a_task_with_one_damaged_field_is_left_out(
    store: RedisStateStore, name: str, value: bytes
) -> None:
    await store.save_task(task("a"))
    whole = task("b")
    await store.save_task(whole)
    await admin(store, "HSET", store.tasks.keys("session", "a").task, name, value)
    assert await store.list_tasks("session") == [whole]
    (aside,) = await store.unreadable(session_id="session")
    assert "s3cr3t" not in aside.reason


async def test_a_key_of_another_type_is_left_out(store: RedisStateStore) -> None:
    saved = task("a")
    await store.save_task(saved)
    await store.save_task(task("b"))
    key = store.tasks.keys("session", "b").task
    await admin(store, "SET", key, "text", "PX", 60_000)
    assert await store.list_tasks("session") == [saved]
    (aside,) = await store.unreadable(session_id="session")
    assert (aside.place, aside.reason, aside.row) == ("task b", "not a hash", "")


async def test_an_unreadable_binding_is_left_out_and_kept_aside(
    store: RedisStateStore, broken: tuple[bytes, str]
) -> None:
    for name in "abc":
        await store.save_remote_binding(binding(name))
    await admin(
        store, "HSET", store.base.keys.binding("trace", "=context:b"), "document", broken[0]
    )
    assert await store.list_remote_bindings("trace") == [binding("a"), binding("c")]
    await _check(store, broken, "binding =context:b", trace_id="trace")


async def test_a_binding_without_a_document_is_left_out(store: RedisStateStore) -> None:
    await store.save_remote_binding(binding("a"))
    await admin(store, "HDEL", store.base.keys.binding("trace", "=context:a"), "document")
    assert await store.list_remote_bindings("trace") == []
    assert len(await store.unreadable(trace_id="trace")) == 1


async def test_an_unreadable_trajectory_is_none_and_kept_aside(
    store: RedisStateStore, broken: tuple[bytes, str]
) -> None:
    await store.save_trajectory("trace", "session", Trajectory("q"))
    key = store.base.keys.trajectory("session", "trace")
    await admin(store, "HSET", key, "document", broken[0])
    assert await store.get_trajectory("trace", "session") is None
    assert await store.list_traces("session") == ["trace"]
    await _check(store, broken, "trajectory trace", session_id="session")


async def test_an_unreadable_pause_is_none_and_kept_aside(
    store: RedisStateStore, broken: tuple[bytes, str], caplog: pytest.LogCaptureFixture
) -> None:
    await store.save_planner_state("s3cr3t-token", {"a": 1})
    await admin(store, "HSET", store.base.keys.pause("s3cr3t-token"), "payload", broken[0])
    assert await store.load_planner_state("s3cr3t-token") is None
    await _check(store, broken, "pause", token="s3cr3t-token")
    assert "cannot be read" in caplog.text
    assert "s3cr3t" not in caplog.text


async def test_a_row_that_a_hosts_own_class_refuses_is_kept_aside(
    store: RedisStateStore, settings: Any
) -> None:
    class Picky:
        def __init__(self, **_: Any) -> None:
            raise ArithmeticError("not today")

    await store.save_event(event())
    async with RedisStateStore(settings, types=HostTypes(stored_event=Picky)) as picky:
        assert await picky.load_history("trace") == []
        (aside,) = await picky.unreadable(trace_id="trace")
        assert aside.reason == "ArithmeticError"


async def test_so_many_rows_are_kept_aside_and_no_more(store: RedisStateStore) -> None:
    log = Log(store.base.scripts, store.base.keys.updates("session"), Bounds(1000, 60_000))
    await log.append([(str(n).encode(), b"garbage %d" % n) for n in range(150)])
    await store.save_update(update("good"))
    assert len(await store.list_updates("session")) == 1
    assert len(await store.unreadable(session_id="session")) == 100
    assert (await store.health()).unreadable_rows == 150


async def test_what_was_set_aside_is_remembered_within_bounds(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.stores.base._REMEMBERED", 2)
    for name in "abc":
        await admin(store, "SET", store.base.keys.memory(name), "text", "PX", 60_000)
        assert await store.load_memory_state(name) is None
    assert len(store.base.noticed) == 1
    assert (await store.health()).unreadable_rows == 3


async def test_a_read_that_is_not_permitted_is_no_damage() -> None:
    with own_server() as own:
        async with RedisStateStore.from_url(own.url) as store:
            await admin(store, "ACL", "SETUSER", "default", "-hgetall")
            with pytest.raises(CommandRefused):
                await store.load_memory_state("key")
            assert (await store.health()).unreadable_rows == 0


async def test_a_snapshot_without_a_time_is_read(store: RedisStateStore) -> None:
    saved = task()
    await store.save_task(saved)
    document = (
        b'{"task_type":"BACKGROUND","context_snapshot":{"session_id":"s","task_id":"t"},'
        b'"trace_id":null,"description":"d","created_at":"2024-01-01T00:00:00+00:00"}'
    )
    await admin(store, "HSET", store.tasks.keys("session", "task").task, "document", document)
    (loaded,) = await store.list_tasks("session")
    assert loaded.description == "d"
    assert loaded.context_snapshot.task_id == "t"


async def test_nothing_unreadable_is_an_empty_list(store: RedisStateStore) -> None:
    assert await store.unreadable() == []
    assert await store.unreadable(session_id="") == []
    assert await store.unreadable(token="unknown") == []


@pytest.mark.parametrize(
    "fields",
    [{"d": "foreign"}, {"id": b"x", "topic": b"\xc3\x28", "row": b"[]"}, {"id": b"x", "row": b""}],
    ids=["other fields", "a topic that is no text", "no topic"],
)
async def test_a_row_that_somebody_else_put_there_is_set_aside(
    store: RedisStateStore, fields: dict[str, Any]
) -> None:
    await store.save_update(update("first"))
    keys = store.base.keys.updates("session")
    flat = [part for pair in fields.items() for part in pair]
    await store.transport.sender.send("XADD", keys.rows, "1-9999999999999", *flat, repeatable=True)
    assert [row.update_id for row in await store.list_updates("session")] == ["first"]
    page = await store.read_updates("session")
    assert [row.update_id for row in page.values] == ["first"]
    (aside,) = await store.unreadable(session_id="session")
    assert aside.reason
