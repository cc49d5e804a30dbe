"""Ids of every kind, addresses that lead nowhere, and options that cannot be used."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import (
    BackendUnavailable,
    ConfigError,
    InvalidField,
    MissingCapability,
    RedisStateStore,
    Settings,
)
from redis_state.models import (
    StateStore,
    StateUpdate,
    SteeringEvent,
    SteeringEventType,
    SupportsArtifacts,
    SupportsConversationBindings,
    SupportsMemoryState,
    SupportsPlannerEvents,
    SupportsPlannerState,
    SupportsSteering,
    SupportsTasks,
    SupportsTrajectories,
    Trajectory,
    missing_capabilities,
    require_capabilities,
)
from redis_state.testing import eventually
from tests.support.samples import (
    LONG_ID,
    ODD_IDS,
    binding,
    changed,
    event,
    planner_event,
    steering,
    task,
    update,
)
from tests.support.scripts.logs import ids_of
from tests.support.servers.faults import Proxy
from tests.support.timing import Overdue

LONG = LONG_ID


async def test_sessions_of_any_id_are_apart(store: RedisStateStore) -> None:
    for number, name in enumerate(ODD_IDS):
        await store.save_update(update("u", number, session_id=name))
        await store.save_steering(steering("e", {"number": number}, session_id=name))
        await store.save_task(task("t", name, priority=number))
        await store.save_trajectory("trace", name, Trajectory(str(number)))
    for number, name in enumerate(ODD_IDS):
        assert [each.content for each in await store.list_updates(name)] == [number]
        assert [each.session_id for each in await store.list_updates(name)] == [name]
        (steered,) = await store.list_steering(name)
        assert (steered.session_id, steered.payload) == (name, {"number": number})
        (listed,) = await store.list_tasks(name)
        assert (listed.session_id, listed.priority) == (name, number)
        assert await store.get_trajectory("trace", name) == Trajectory(str(number))


async def test_tasks_of_any_id_are_apart(store: RedisStateStore) -> None:
    for number, name in enumerate(ODD_IDS):
        await store.save_task(task(name, priority=number))
        await store.save_update(update(f"u{number}", number, task_id=name))
        await store.save_steering(steering(f"e{number}", {"n": number}, task_id=name))
    assert [each.task_id for each in await store.list_tasks("session")] == list(ODD_IDS)
    for number, name in enumerate(ODD_IDS):
        (found,) = await store.list_updates("session", task_id=name)
        assert (found.task_id, found.content) == (name, number)
        (steered,) = await store.list_steering("session", task_id=name)
        assert (steered.task_id, steered.payload) == (name, {"n": number})


async def test_rows_of_any_id_are_apart_and_cursors(store: RedisStateStore) -> None:
    for name in ODD_IDS:
        await store.save_update(update(name))
        await store.save_steering(steering(name))
    assert [each.update_id for each in await store.list_updates("session")] == list(ODD_IDS)
    assert [each.event_id for each in await store.list_steering("session")] == list(ODD_IDS)
    for number, name in enumerate(ODD_IDS):
        rest = ODD_IDS if name == "" else ODD_IDS[number + 1 :]
        after = await store.list_updates("session", since_id=name)
        assert [each.update_id for each in after] == list(rest)


async def test_an_id_that_looks_like_a_stored_form_is_another_id(store: RedisStateStore) -> None:
    keys = store.base.keys.updates("session")
    await store.save_update(update(LONG))
    (stored_form,) = await ids_of(store.base.scripts, keys)
    assert await store.updates.save(update(stored_form.decode())) is True
    found = [each.update_id for each in await store.list_updates("session")]
    assert found == [LONG, stored_form.decode()]


async def test_traces_memory_and_tokens_of_any_id_are_apart(store: RedisStateStore) -> None:
    for number, name in enumerate(ODD_IDS):
        await store.save_event(event(float(number), trace_id=name))
        await store.save_planner_event(name, planner_event(float(number)))
        await store.save_remote_binding(binding(str(number), trace_id=name))
        await store.save_memory_state(name, {"n": number})
        await store.save_planner_state(name, {"n": number})
    for number, name in enumerate(ODD_IDS):
        assert await store.load_history(name) == [event(float(number), trace_id=name)]
        assert await store.list_planner_events(name) == [planner_event(float(number))]
        assert await store.list_remote_bindings(name) == [binding(str(number), trace_id=name)]
        assert await store.load_memory_state(name) == {"n": number}
        assert await store.load_planner_state(name) == {"n": number}


def _update(**fields: Any) -> StateUpdate:
    return StateUpdate.model_construct(**{**dict(update("u")), **fields})


def _steering(**fields: Any) -> SteeringEvent:
    return SteeringEvent.model_construct(**{**dict(steering("e")), **fields})


NOT_TEXT: list[tuple[str, Callable[[RedisStateStore, Any], Awaitable[Any]]]] = [
    ("trace_id", lambda store, bad: store.save_event(event(trace_id=bad))),
    ("trace_id", lambda store, bad: store.load_history(bad)),
    ("trace_id", lambda store, bad: store.list_remote_bindings(bad)),
    ("trace_id", lambda store, bad: store.save_planner_event(bad, planner_event())),
    ("trace_id", lambda store, bad: store.list_planner_events(bad)),
    ("trace_id", lambda store, bad: store.save_trajectory(bad, "s", Trajectory("q"))),
    ("trace_id", lambda store, bad: store.get_trajectory(bad, "s")),
    ("trace_id", lambda store, bad: store.save_update(_update(trace_id=bad))),
    ("trace_id", lambda store, bad: store.save_steering(_steering(trace_id=bad))),
    ("session_id", lambda store, bad: store.save_trajectory("t", bad, Trajectory("q"))),
    ("session_id", lambda store, bad: store.list_traces(bad)),
    ("session_id", lambda store, bad: store.list_tasks(bad)),
    ("session_id", lambda store, bad: store.list_updates(bad)),
    ("session_id", lambda store, bad: store.list_steering(bad)),
    ("session_id", lambda store, bad: store.read_updates(bad)),
    ("session_id", lambda store, bad: anext(store.watch_updates(bad))),
    ("session_id", lambda store, bad: anext(store.watch_steering(bad))),
    ("session_id", lambda store, bad: store.clear_session(bad)),
    ("session_id", lambda store, bad: store.save_update(_update(session_id=bad))),
    ("session_id", lambda store, bad: store.save_steering(_steering(session_id=bad))),
    ("task_id", lambda store, bad: store.save_update(_update(task_id=bad))),
    ("task_id", lambda store, bad: store.save_steering(_steering(task_id=bad))),
    ("task_id", lambda store, bad: store.list_updates("s", task_id=bad)),
    ("update_id", lambda store, bad: store.save_update(_update(update_id=bad))),
    ("event_id", lambda store, bad: store.save_steering(_steering(event_id=bad))),
    ("since_id", lambda store, bad: store.list_updates("s", since_id=bad)),
    ("after", lambda store, bad: store.read_updates("s", after=bad)),
    ("after", lambda store, bad: store.read_steering("s", after=bad)),
    ("after", lambda store, bad: anext(store.watch_updates("s", after=bad))),
    ("update_type", lambda store, bad: store.save_update(_update(update_type=bad))),
    ("event_type", lambda store, bad: store.save_steering(_steering(event_type=bad))),
    ("source", lambda store, bad: store.save_steering(_steering(source=bad))),
    ("created_at", lambda store, bad: store.save_update(_update(created_at=bad))),
    ("created_at", lambda store, bad: store.save_steering(_steering(created_at=bad))),
    ("step_index", lambda store, _: store.save_update(_update(step_index="one"))),
    ("total_steps", lambda store, _: store.save_update(_update(total_steps=1.5))),
    ("total_steps", lambda store, _: store.save_update(_update(total_steps=1 << 5_000))),
    ("timeout_s", lambda store, _: store.drain(10**400)),
    ("key", lambda store, bad: store.save_memory_state(bad, {})),
    ("key", lambda store, bad: store.load_memory_state(bad)),
    ("token", lambda store, bad: store.save_planner_state(bad, {})),
    ("token", lambda store, bad: store.load_planner_state(bad)),
]


@pytest.mark.parametrize("bad", [5, b"bytes", ["list"]], ids=["int", "bytes", "list"])
@pytest.mark.parametrize(("field", "call"), NOT_TEXT)
async def test_what_is_not_text_is_refused_by_name(
    store: RedisStateStore,
    field: str,
    call: Callable[[RedisStateStore, Any], Awaitable[Any]],
    bad: Any,
) -> None:
    with pytest.raises(InvalidField) as caught:
        await call(store, bad)
    assert caught.value.field == field
    assert "bytes" not in str(caught.value).removesuffix("not bytes")


async def test_kinds_as_plain_text_are_taken_for_what_they_say(store: RedisStateStore) -> None:
    await store.save_update(_update(update_type="RESULT"))
    await store.save_steering(_steering(event_type="CANCEL"))
    (found,) = await store.list_updates("session")
    assert found.update_type.value == "RESULT"
    (steered,) = await store.list_steering("session")
    assert steered.event_type is SteeringEventType.CANCEL


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_event_per_trace'"):
        RedisStateStore.from_url("redis://localhost", max_event_per_trace=5)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"call_timeout_s": 0}, "call_timeout_s"),
        ({"call_timeout_s": "s3cr3t"}, "call_timeout_s"),
        ({"max_events_per_trace": "many"}, "max_events_per_trace"),
        ({"pause_ttl": "long"}, "pause_ttl"),
        ({"namespace": "a:b"}, "namespace"),
        ({"namespace": ""}, "namespace"),
    ],
)
def test_an_option_that_cannot_be_used_is_told_without_its_value(
    options: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ConfigError, match=reported) as caught:
        RedisStateStore.from_url("redis://localhost", **options)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis+sentinel://localhost",
        "redis://localhost:port",
        "redis://:s3cr3t@localhost:99999",
        "redis://[::1",
        5,
        None,
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_its_password(
    url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_STATE_URL", "nonsense")
    with pytest.raises(ConfigError) as caught:
        RedisStateStore.from_url(url)
    assert "s3cr3t" not in str(caught.value)


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_URL", "redis://:s3cr3t@somewhere:7000/3")
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", "from-environment")
    store = RedisStateStore.from_url(max_events_per_trace=7)
    assert repr(store) == "<RedisStateStore redis://somewhere:7000/3 namespace=from-environment>"
    assert store.settings.max_events_per_trace == 7


async def test_a_server_that_refuses_is_told_within_the_deadline() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    options = {"call_timeout_s": 0.5, "connect_timeout_s": 0.5}
    async with RedisStateStore.from_url(f"redis://:s3cr3t@127.0.0.1:{port}/0", **options) as store:
        call = asyncio.ensure_future(store.list_tasks("session"))
        late = Overdue(call, 2.0)
        with pytest.raises(BackendUnavailable) as caught:
            await call
        assert not late.seen
        assert f"redis://127.0.0.1:{port}/0" in str(caught.value)
        assert "s3cr3t" not in str(caught.value)
        assert type(caught.value) is BackendUnavailable
        health = await store.health()
        assert not health.ok
        assert health.round_trip_ms is None
        assert health.problem == str(caught.value)


async def test_a_server_that_never_answers_is_told_within_the_deadline(settings: Settings) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(
            settings, url=SecretStr(proxy.url), call_timeout_s=0.5, connect_timeout_s=0.3
        ) as store,
    ):
        proxy.silence()
        calls = [store.save_update(update(str(number))) for number in range(5)]
        all_calls = asyncio.gather(*calls, return_exceptions=True)
        late = Overdue(all_calls, 2.0)
        outcomes = await all_calls
        assert not late.seen
        assert {type(outcome) for outcome in outcomes} == {BackendUnavailable}
        proxy.silence(silent=False)
        proxy.cut()

        async def answers() -> bool:
            # A connection that was cut early may take longer than a call: is it a TLS port?
            with suppress(BackendUnavailable):
                return await store.list_updates("session") == []
            return False

        await eventually(answers, "it is reached again")


def test_the_store_can_what_the_contract_asks_for() -> None:
    store = RedisStateStore.from_url("redis://localhost")
    for protocol in (
        StateStore,
        SupportsPlannerState,
        SupportsMemoryState,
        SupportsTasks,
        SupportsSteering,
        SupportsTrajectories,
        SupportsPlannerEvents,
        SupportsConversationBindings,
        SupportsArtifacts,
    ):
        assert isinstance(store, protocol)


def test_missing_capabilities_are_named() -> None:
    store = RedisStateStore.from_url("redis://localhost")
    assert missing_capabilities(store, ["save_task", "list_tasks", "save_planner_state"]) == []
    assert missing_capabilities(store, ["save_task", "fly"]) == ["fly"]
    require_capabilities(store, feature="sessions", methods=["save_task", "list_tasks"])
    with pytest.raises(MissingCapability, match="flights needs a store with fly") as caught:
        require_capabilities(store, feature="flights", methods=["fly"])
    assert caught.value.missing == ["fly"]
