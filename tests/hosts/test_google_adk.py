"""Sessions of Google's ADK in Redis, with ADK's own package."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    CorruptState,
    InvalidField,
    OutcomeUnknown,
    PayloadUnreadable,
)
from tests.hosts import real
from tests.hosts.links import CALLERS, dying_links
from tests.support.processes import children
from tests.support.samples import HOST_IDS, changed
from tests.support.servers.changes.leaving import Leaving
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy, start_process
from tests.support.servers.proxies.command_proxy import CommandProxy

adk: Any = real.load("google.adk.sessions")
events: Any = real.load("google.adk.events")
bases: Any = real.load("google.adk.sessions.base_session_service")
stale: Any = real.load("google.adk.errors._stale_session_error")
missing: Any = real.load("google.adk.errors.session_not_found_error")
exists: Any = real.load("google.adk.errors.already_exists_error")
genai: Any = real.load("google.genai.types")

from redis_state.integrations.google_adk import RedisStateSessionService  # noqa: E402


def event_of(delta: dict[str, Any] | None = None, **more: Any) -> Any:
    """Make an event."""
    return events.Event(author="a", actions=events.EventActions(state_delta=delta or {}), **more)


@pytest.fixture
def service(store: RedisStateStore) -> Any:
    return RedisStateSessionService(store)


@pytest.mark.parametrize("odd", HOST_IDS)
async def test_a_session_comes_back_whole_under_any_ids(service: Any, odd: str) -> None:
    place = {"app_name": odd, "user_id": odd}
    state = {"n": 1, "app:a": [1.5, None], "user:u": {"é": "\U0001f600"}, "temp:t": 1}
    made = await service.create_session(**place, session_id=odd, state=state)
    kept = {"n": 1, "app:a": [1.5, None], "user:u": {"é": "\U0001f600"}}
    assert made.state == kept
    part = genai.Part(inline_data=genai.Blob(data=b"\x00\xff", mime_type="x/y"))
    content = genai.Content(role="user", parts=[genai.Part(text="hi"), part])
    appended = await service.append_event(made, event_of({"temp:x": 1, odd: 2}, content=content))
    assert appended.actions.state_delta == {odd: 2}
    assert made.state["temp:x"] == 1
    found = await service.get_session(**place, session_id=odd)
    assert found.events == made.events == [appended]
    assert found.state == {**kept, odd: 2}
    assert (found.app_name, found.user_id, found.id) == (odd, odd, odd.strip())
    assert found.last_update_time == appended.timestamp
    listed = (await service.list_sessions(app_name=odd, user_id=odd)).sessions
    assert [(each.id, each.events, each.state) for each in listed] == [(odd, [], found.state)]
    await service.delete_session(**place, session_id=odd)
    assert await service.get_session(**place, session_id=odd) is None
    assert (await service.list_sessions(app_name=odd)).sessions == []
    assert await service.get_user_state(**place) == {"u": {"é": "\U0001f600"}}


async def test_a_session_that_another_has_written_is_stale(service: Any) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    await service.create_session(**place)
    first, second = [await service.get_session(**place) for _ in range(2)]
    await service.append_event(first, event_of({"k": 1, "app:k": 1}))
    with pytest.raises(stale.StaleSessionError):
        await service.append_event(second, event_of({"k": 2, "app:k": 2}))
    found = await service.get_session(**place)
    assert (found.state, len(found.events)) == ({"k": 1, "app:k": 1}, 1)
    # Agents side by side have one session in common.
    await asyncio.gather(*(service.append_event(found, event_of({f"{n}": n})) for n in range(20)))
    assert len((await service.get_session(**place)).events) == 21
    await service.delete_session(**place)
    with pytest.raises(missing.SessionNotFoundError):
        await service.append_event(found, event_of())


async def test_a_session_without_a_marker_counts_by_its_last_event(service: Any) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    made = await service.create_session(**place)
    bare = {"app_name": "p", "user_id": "u", "id": "s"}
    await service.append_event(adk.Session(**bare), event_of())
    found = await service.get_session(**place)
    with pytest.raises(stale.StaleSessionError):
        await service.append_event(adk.Session(**bare), event_of())
    await service.append_event(adk.Session(**bare, events=list(found.events)), event_of())
    with pytest.raises(stale.StaleSessionError):
        await service.append_event(made, event_of())
    nowhere = adk.Session(app_name="p", user_id="u", id="none")
    with pytest.raises(missing.SessionNotFoundError):
        await service.append_event(nowhere, event_of())


async def test_an_event_that_comes_again_changes_nothing(service: Any) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": " s "}
    made = await service.create_session(**place)
    assert made.id == "s"
    with pytest.raises(exists.AlreadyExistsError):
        await service.create_session(**place, state={"app:a": "lost"})
    event = event_of({"n": 1})
    for _ in range(2):
        assert await service.append_event(made, event) == event
    with pytest.raises(exists.AlreadyExistsError):
        await service.append_event(made, event_of({"n": 2}, id=event.id))
    partial = event_of({"n": 3}, partial=True)
    assert await service.append_event(made, partial) is partial
    found = await service.get_session(**place)
    assert (found.state, found.events) == ({"n": 1}, [event])


async def test_a_session_takes_an_event_whose_reply_was_lost(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    session = await service.create_session(**place)
    scripts, lost = service._of.scripts, 0
    write = scripts.write_adk_session

    async def write_and_lose(*args: Any, **more: Any) -> Any:
        nonlocal lost
        await write(*args, **more)
        lost += 1
        raise BackendUnavailable("redis", "the reply was lost")

    async def lose(event: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(scripts, "write_adk_session", write_and_lose)
            with pytest.raises(BackendUnavailable):
                await service.append_event(session, event)

    event = event_of({"n": 1, "user:n": 2})
    await lose(event)
    for _ in range(2):
        assert await service.append_event(session, event) == event
    assert (session.events, session.state) == ([event], {"n": 1, "user:n": 2})
    more = event_of({"n": 2})
    await service.append_event(session, more)
    assert (await service.get_session(**place)).events == session.events == [event, more]
    # What another has appended since, the session does not have: it is stale.
    late = event_of({"n": 3})
    await lose(late)
    await service.append_event(await service.get_session(**place), event_of({"n": 4}))
    assert await service.append_event(session, late) == late
    with pytest.raises(stale.StaleSessionError):
        await service.append_event(session, event_of())
    assert lost == 2
    assert len((await service.get_session(**place)).events) == 4


async def test_the_newest_events_or_the_late_ones_are_read(store: RedisStateStore) -> None:
    service: Any = RedisStateSessionService(store, max_events=100)
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    session = await service.create_session(**place)
    for n in range(130):
        await service.append_event(session, event_of({"n": n}, timestamp=float(n)))

    async def read(**config: Any) -> list[float]:
        wanted = bases.GetSessionConfig(**config)
        found = await service.get_session(**place, config=wanted)
        assert found.state == {"n": 129}
        return [event.timestamp for event in found.events]

    assert await read(num_recent_events=2) == [128, 129]
    assert await read(num_recent_events=0) == []
    assert await read(after_timestamp=128) == [128, 129]
    assert await read(num_recent_events=3, after_timestamp=128) == [128, 129]
    assert len(await read()) <= 106


async def test_all_sessions_are_listed_in_the_order_of_their_updates(service: Any) -> None:
    for n in range(230):
        await service.create_session(app_name="p", user_id=f"u{n % 3}", session_id=f"s{n}")
    session = await service.get_session(app_name="p", user_id="u1", session_id="s1")
    await service.append_event(session, event_of({"user:k": 1}))
    listed = (await service.list_sessions(app_name="p")).sessions
    assert len({each.id for each in listed}) == 230
    assert listed[-1].id == "s1"
    assert all(each.state == ({"user:k": 1} if each.user_id == "u1" else {}) for each in listed)
    own = (await service.list_sessions(app_name="p", user_id="u2")).sessions
    assert [each.id for each in own] == [f"s{n}" for n in range(230) if n % 3 == 2]
    assert (await service.list_sessions(app_name="p", user_id="")).sessions == []


async def test_states_and_events_are_sealed_and_damage_is_told(
    store: RedisStateStore, settings: Settings
) -> None:
    keys = SecretStr(Fernet.generate_key().decode())
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    async with RedisStateStore(settings.model_copy(update={"payload_keys": keys})) as sealing:
        service: Any = RedisStateSessionService(sealing)
        made = await service.create_session(**place, state={"a": "secret", "app:b": "secret"})
        await service.append_event(made, event_of({"user:c": "secret"}))
        of, fetch = service._keys("p", "u", "s"), store.base.scripts.transport.commands.hgetall
        stored = [await fetch(key) for key in (of.session, of.user, of.app)]
        rows = await store.base.scripts.transport.commands.xrange(of.rows, "-", "+")
        assert b"secret" not in repr((stored, rows)).encode()
        assert (await service.get_session(**place)).state["user:c"] == "secret"
        with pytest.raises(PayloadUnreadable):
            await RedisStateSessionService(store).get_session(**place)
        row = sealing.base.payloads.seal(b'{"author": 7, "secret": 1}')
        found = await service.get_session(**place)
        await service._write(
            of, {}, expected=(await service._expected(of, found)), updated=1, row=(b"x", row)
        )
        with pytest.raises(CorruptState, match="event 2: ValidationError"):
            await service.get_session(**place)


async def test_processes_lose_no_state_and_a_killed_one_leaves_whole_events(
    store: RedisStateStore, settings: Settings
) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    names = ["a", "b", "killed"]
    counts = {"a": 150, "b": 150, "killed": 1_000_000}
    processes = [
        await start_process("append_adk_events", argument | {"name": name, "count": counts[name]})
        for name in names
    ]
    printed: dict[str, list[str]] = {name: [] for name in names}

    async def read(name: str, process: Any) -> None:
        while line := await process.stdout.readline():
            printed[name].append(line.decode().strip())
            if name == "killed" and len(printed[name]) == 100:
                process.kill()

    try:
        await asyncio.gather(*map(read, names, processes))
        assert [await process.wait() for process in processes] == [0, 0, -9]
    finally:
        await asyncio.gather(*map(children.end, processes))
    service: Any = RedisStateSessionService(store)
    done: set[str] = set()
    found: Any = None
    for name in names:
        found = await service.get_session(app_name="p", user_id="u", session_id=name)
        ids = [event.id for event in found.events]
        assert ids == [f"{name}-{n}" for n in range(len(ids))]
        # What was acknowledged is there; of what was not, one at most.
        assert ids[: len(printed[name])] == printed[name]
        assert len(ids) <= len(printed[name]) + (name == "killed")
        assert {key for key in found.state if ":" not in key} == set(ids)
        done |= set(ids)
    for prefix in ("app:", "user:"):
        changed = {key.removeprefix(prefix) for key in found.state if key.startswith(prefix)}
        assert changed == done
    # Another process continues where the killed one stood.
    await service.append_event(found, event_of({"app:more": 1}))


async def test_terms_that_make_no_sense_are_refused(service: Any, store: RedisStateStore) -> None:
    with pytest.raises(InvalidField, match="max_events"):
        RedisStateSessionService(store, max_events=0)
    with pytest.raises(InvalidField, match="app_name"):
        await service.create_session(app_name=7, user_id="u")
    with pytest.raises(InvalidField, match="session_id"):
        await service.get_session(app_name="p", user_id="u", session_id=" ")
    made = await service.create_session(app_name="p", user_id="u", state={"f": print})
    assert json.dumps(made.state) == json.dumps({"f": str(print)})


async def test_the_newest_events_are_there_though_more_are_appended_while_it_reads(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    session = await service.create_session(**place)
    for number in range(3):
        await service.append_event(session, event_of(id=f"e{number}"))
    load, appended = service._of.records.load, 0

    async def load_and_append(key: str) -> Any:
        nonlocal appended
        found = await load(key)
        monkeypatch.undo()
        for number in range(3, 8):
            await service.append_event(session, event_of(id=f"e{number}"))
            appended += 1
        return found

    monkeypatch.setattr(service._of.records, "load", load_and_append)
    read = await service.get_session(**place, config=bases.GetSessionConfig(num_recent_events=2))
    assert appended == 5
    assert [each.id for each in read.events] == ["e1", "e2"]


async def test_a_session_that_is_written_while_it_is_read_has_what_its_events_changed(
    service: Any, settings: Settings
) -> None:
    place = {"app_name": "app", "user_id": "u"}
    made = await service.create_session(**place, session_id="s", state={"app:n": 0, "user:n": 0})

    async def append() -> None:
        await service.append_event(made, event_of({"app:n": 1, "user:n": 1}))

    async with CommandProxy(settings.url.get_secret_value()) as proxy:
        url = SecretStr(proxy.url)
        async with RedisStateStore(settings.model_copy(update={"url": url})) as store:
            reader = RedisStateSessionService(store)
            with proxy.meanwhile("HGETALL", append, at=3):
                found = await reader.get_session(**place, session_id="s")
    assert found.state["app:n"] >= len(found.events)
    assert found.state["user:n"] >= len(found.events)


async def test_a_session_that_was_created_is_not_denied(
    service: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=0.3) as far,
    ):
        distant: Any = RedisStateSessionService(far)
        Leaving(proxy, far.transport, monkeypatch).behind(distant._of.scripts, "write_adk_session")
        with pytest.raises(OutcomeUnknown, match="written, then"):
            await distant.create_session(**place)
    assert await service.get_session(**place) is not None


async def test_a_read_that_a_lost_server_ends_leaves_no_error_behind(
    service: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    await service.create_session(**place)
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=0.3) as far,
    ):
        distant: Any = RedisStateSessionService(far)
        Leaving(proxy, far.transport, monkeypatch).behind(distant._of.records, "load")
        with pytest.raises(BackendUnavailable):
            await distant.get_session(**place)
    gc.collect()
    await asyncio.sleep(0)
    assert not unheard


async def test_bytes_that_are_no_text_are_refused_and_not_shown(service: Any) -> None:
    place, odd = {"app_name": "p", "user_id": "u"}, {"k": b"secret \xff"}
    session = await service.create_session(**place)
    with pytest.raises(InvalidField, match="UTF-8") as refused:
        await service.create_session(**place, state=odd)
    assert "secret" not in str(refused.value)
    with pytest.raises(InvalidField, match="UTF-8") as refused:
        await service.append_event(session, event_of(odd))
    assert "secret" not in str(refused.value)


async def test_events_over_tls_on_links_that_die_are_there_once(
    settings: Settings, tmp_path: Path
) -> None:
    async with dying_links(settings, tmp_path) as (store, dying):
        service: Any = RedisStateSessionService(store)

        async def serve(name: str) -> None:
            place = {"app_name": "p", "user_id": "u", "session_id": name}
            session = await service.create_session(**place, state={f"app:{name}": 0})
            for n in range(5):
                await service.append_event(session, event_of({f"user:{name}": n}, id=f"{n}"))
            found = await service.get_session(**place)
            assert found.events == session.events
            assert [event.id for event in found.events] == [f"{n}" for n in range(5)]

        await dying(serve)
        names = [f"c{n}" for n in range(CALLERS)]
        shared = await service.get_user_state(app_name="p", user_id="u")
        assert shared == dict.fromkeys(names, 4)
        assert len((await service.list_sessions(app_name="p")).sessions) == CALLERS


async def test_a_session_of_a_history_that_went_back_is_stale() -> None:
    place = {"app_name": "p", "user_id": "u", "session_id": "s"}
    async with rolling_back() as redis, RedisStateStore.from_url(redis.url) as store:
        service: Any = RedisStateSessionService(store)
        session = await service.create_session(**place)
        await service.append_event(session, event_of({"n": 1}))
        await redis.mark()
        lost = event_of({"n": 2, "app:n": 2})
        await service.append_event(session, lost)
        await redis.go_back()
        other = await service.get_session(**place)
        assert other.state == {"n": 1}
        # Its revision has the number of the lost one.
        await service.append_event(other, event_of({"n": 3}))
        with pytest.raises(stale.StaleSessionError):
            await service.append_event(session, event_of({"n": 4}))
        # Nor is a lost event taken for one that is there.
        assert await service.append_event(other, lost) == lost
        found = await service.get_session(**place)
        assert (found.state, found.events) == ({"n": 2, "app:n": 2}, other.events)
