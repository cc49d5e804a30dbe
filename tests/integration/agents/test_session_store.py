from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ExecutionHistory,
    FrozenMap,
    LlmConfig,
    SessionHeader,
    SessionStatus,
    SessionStore,
    summary_of,
)
from redis_state.errors import (
    ConfigError,
    CorruptState,
    InvalidField,
    LeaseLost,
    SessionConflict,
    SessionNotFound,
    VersionConflict,
)
from redis_state.primitives.lease import Leases
from redis_state.scripts import Reply
from redis_state.testing import eventually
from redis_state.transport.keys import agent_shard
from tests.support.agents.sessions import fresh, info, stepped
from tests.support.servers.faults import Proxy, run_processes
from tests.support.sizes import sizes

FIXTURES = Path(__file__).resolve().parents[4] / "shared" / "fixtures" / "agent_state"
FILES = sorted(FIXTURES.glob("*.json"))
PAST = "2025-01-01T00:00:00+00:00"


@pytest.fixture
def sessions(store: RedisStateStore) -> SessionStore:
    return SessionStore(store)


async def ids(sessions: SessionStore, **options: Any) -> list[str]:
    page = await sessions.list_headers(**options)
    return [header.session_id for header in page.headers]


async def fields_of(store: RedisStateStore, session_id: str) -> dict[str, bytes]:
    flat = await store.base.fetch(store.base.keys.agent_session(session_id))
    return {name.decode(): data for name, data in zip(flat[::2], flat[1::2], strict=True)}


async def test_a_session_is_created_once_saved_over_its_version_and_loaded(
    sessions: SessionStore,
) -> None:
    begun = fresh("a")
    created = await sessions.create(begun)
    assert (begun.version, created.version) == (0, 1)
    with pytest.raises(SessionConflict) as twice:
        await sessions.create(begun)
    assert (twice.value.expected, twice.value.actual) == (0, 1)
    with pytest.raises(SessionConflict):
        await sessions.create(created)
    saved = await sessions.save(created.with_state(created.state.with_user_message("hello")))
    assert saved.version == 2
    assert saved.header.updated_at >= created.header.updated_at
    loaded = await sessions.get("a")
    assert loaded == saved
    assert loaded.to_dict() == saved.to_dict()
    assert [message.text for message in loaded.state.messages] == ["hello"]
    assert await sessions.exists("a")
    assert await sessions.status("a") is SessionStatus.ACTIVE


async def test_only_the_very_version_is_saved_over(sessions: SessionStore) -> None:
    created = await sessions.create(fresh("a"))
    await sessions.save(created)
    for version in (1, 3, 7):
        stale = created.changed(header=created.header.changed(version=version))
        with pytest.raises(VersionConflict) as conflict:
            await sessions.save(stale)
        assert (conflict.value.expected, conflict.value.actual) == (version, 2)
    with pytest.raises(SessionConflict):
        await sessions.save(fresh("a"))


async def test_what_is_not_there_is_none_and_cannot_be_saved(sessions: SessionStore) -> None:
    assert await sessions.load("a") is None
    assert await sessions.status("a") is None
    assert not await sessions.exists("a")
    assert not await sessions.delete("a")
    with pytest.raises(SessionNotFound):
        await sessions.get("a")
    created = await sessions.create(fresh("a"))
    assert await sessions.delete("a")
    with pytest.raises(SessionNotFound):
        await sessions.save(created)
    with pytest.raises(InvalidField, match="session_id"):
        await sessions.load("a:b")


async def test_an_id_that_was_created_anew_refuses_a_session_of_its_former_life(
    sessions: SessionStore,
) -> None:
    former = await sessions.create(fresh("a", name="former"))
    await sessions.delete("a")
    await sessions.create(fresh("a", name="later"))
    with pytest.raises(SessionConflict):
        await sessions.save(former)
    assert (await sessions.get("a")).definition.name == "later"


async def test_a_session_made_by_hand_is_not_saved_over_another_life(
    sessions: SessionStore,
) -> None:
    former = await sessions.create(fresh("a", name="former"))
    earlier = former.header.changed(created_at=former.header.created_at - timedelta(seconds=5))
    await sessions.delete("a")
    await sessions.create(fresh("a", name="later"))
    by_hand = AgentSession.from_dict(former.changed(header=earlier).to_dict())
    with pytest.raises(SessionConflict):
        await sessions.save(by_hand)
    assert (await sessions.get("a")).definition.name == "later"


@pytest.mark.parametrize("write", ["a:1", "a b", ""])
async def test_a_write_whose_name_could_be_taken_for_another_is_refused(
    sessions: SessionStore, write: str
) -> None:
    with pytest.raises(InvalidField, match="write"):
        await sessions.create(fresh("a"), write=write)


async def test_a_write_that_is_repeated_recognises_itself(sessions: SessionStore) -> None:
    created = await sessions.create(fresh("a"), write="mine")
    assert (await sessions.create(fresh("a"), write="mine")).version == 1
    for _ in range(2):
        assert (await sessions.save(created, write="next")).version == 2
    with pytest.raises(SessionConflict):
        await sessions.save(created, write="another")
    # Also after somebody else's: it was stored, and is no conflict.
    await sessions.save(await sessions.get("a"))
    again = await sessions.save(created, write="next")
    assert again.version == 2
    with pytest.raises(SessionConflict) as behind:
        await sessions.save(again)
    assert behind.value.actual == 3
    for wrong in ("", "two words"):
        with pytest.raises(InvalidField, match="write"):
            await sessions.save(created, write=wrong)


async def test_a_save_whose_reply_was_lost_is_no_conflict(settings: Settings) -> None:
    url = settings.url.get_secret_value()
    async with Proxy(url) as proxy:
        through = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(settings) as direct, RedisStateStore(through) as store:
            sessions = SessionStore(store)
            session = await sessions.create(fresh("a"))
            proxy.silence()
            saving = asyncio.create_task(sessions.save(session))

            async def written() -> bool:
                header = await SessionStore(direct).header("a")
                return header is not None and header.version == 2

            await eventually(written, "the save is done, and its reply swallowed")
            await eventually(lambda: proxy.swallowed > 0, "the reply was swallowed")
            proxy.silence(silent=False)
            proxy.cut()
            saved = await saving
            assert saved.version == 2
            assert (await sessions.save(saved)).version == 3


@pytest.mark.skipif(not FILES, reason="the payloads of the original are not beside this checkout")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_what_the_original_wrote_comes_back_as_it_was(
    file: Path, sessions: SessionStore
) -> None:
    payload = json.loads(file.read_text(encoding="utf-8"))["php"]  # noqa: ASYNC240 - a small one
    given: dict[str, Any] = {
        "header": {
            "sessionId": "from-php",
            "parentId": None,
            "status": "suspended",
            "version": 0,
            "agentName": "coder",
            "agentLabel": "Coder",
            "createdAt": PAST,
            "updatedAt": PAST,
        },
        "definition": {
            "name": "coder",
            "label": None,
            "description": "",
            "systemPrompt": "",
            "llmConfig": "preset",
            "tools": ["look"],
            "toolsDeny": None,
            "skills": [],
            "budget": {},
            "capabilities": [],
            "metadata": [],
            "unknown": {"kept": [1.0]},
        },
        "state": payload,
    }
    session = AgentSession.from_dict(given)
    assert session.to_dict() == given
    await sessions.create(session)
    loaded = await sessions.get("from-php")
    for each in (loaded, await sessions.save(loaded)):
        written = each.to_dict()
        assert json.dumps(written["state"]) == json.dumps(payload)
        assert written["definition"] == given["definition"]
        assert written["header"] | {"updatedAt": PAST, "version": 0} == given["header"]
    assert loaded.state == AgentState.from_dict(payload)


async def test_parts_that_nobody_changed_stay_the_very_bytes(
    sessions: SessionStore, store: RedisStateStore
) -> None:
    state = fresh().state.with_user_message("go")
    for number in range(5):
        state = stepped(state, number)
    await sessions.create(fresh("a").with_state(state))
    before = await fields_of(store, "a")
    key = store.base.keys.agent_session("a")
    # As another writer would space it: still JSON, and another text.
    odd = before["s:2"].replace(b'":', b'" : ')
    await store.transport.sender.send("HSET", key, "s:2", odd, repeatable=True)
    loaded = await sessions.get("a")
    assert len(loaded.state.steps) == 5
    saved = await sessions.save(loaded.with_state(stepped(loaded.state, 5)))
    after = await fields_of(store, "a")
    kept = [name for name in before if name.startswith(("s:", "m0:"))]
    assert len(kept) == 11
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept} | {
        "s:2": odd
    }
    assert "s:5" in after
    forked = await sessions.fork("a", as_id="b")
    assert forked.header.parent_id == "a"
    assert (await fields_of(store, "b"))["m0:3"] == before["m0:3"]
    assert saved.version == 2


async def test_what_is_dropped_from_a_state_is_dropped_from_the_store(
    sessions: SessionStore, store: RedisStateStore
) -> None:
    state = fresh().state
    for number in range(5):
        state = stepped(state, number)
    session = await sessions.create(fresh("a").with_state(state))
    again = stepped(session.state.for_next_execution(), 9)
    session = await sessions.save(session.with_state(again))
    assert {name for name in await fields_of(store, "a") if name.startswith("s:")} == {"s:0"}
    session = await sessions.save(session.cleared())
    assert not [name for name in await fields_of(store, "a") if ":" in name]
    assert (await sessions.get("a")) == session


async def test_a_session_made_by_hand_replaces_all_that_is_stored(
    sessions: SessionStore, store: RedisStateStore
) -> None:
    session = await sessions.create(fresh("a").with_state(stepped(stepped(fresh().state, 1), 2)))
    by_hand = AgentSession.from_dict(session.with_state(stepped(fresh().state, 3)).to_dict())
    saved = await sessions.save(by_hand)
    assert saved.version == 2
    assert {name for name in await fields_of(store, "a") if ":" in name} == {"s:0", "m0:0"}
    assert await sessions.get("a") == saved


async def test_a_damaged_session_is_told_without_its_contents(
    sessions: SessionStore, store: RedisStateStore
) -> None:
    await sessions.create(fresh("a").with_state(stepped(stepped(fresh().state, 1), 2)))
    key, sender = store.base.keys.agent_session("a"), store.transport.sender
    await sender.send("HSET", key, "s:1", b'"s3cr3t', repeatable=True)
    loaded = await sessions.get("a")
    with pytest.raises(InvalidField, match=r"stepExecutions\[1\]") as unread:
        loaded.state.steps  # noqa: B018 - to look is the test
    assert "s3cr3t" not in str(unread.value)
    await sender.send("HDEL", key, "s:0", repeatable=True)
    with pytest.raises(CorruptState, match="s:0"):
        await sessions.get("a")
    await sender.send("HSET", key, "header", b'{"s3cr3t"', repeatable=True)
    with pytest.raises(CorruptState) as corrupt:
        await sessions.header("a")
    assert "s3cr3t" not in str(corrupt.value)
    await sessions.create(fresh("b"))
    assert await ids(sessions) == ["b"]
    assert [each.place for each in await store.base.unreadable("a")] == ["header"]


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("state.execution.stepExecutions[1].id", {"id": "step-1", "step": {}}),
        ("state.execution.stepExecutions[1].step", {"step": "gone"}),
    ],
)
async def test_a_step_that_nobody_has_looked_at_is_read_before_it_is_stored(
    sessions: SessionStore, place: str, part: dict[str, Any]
) -> None:
    data = fresh("a").with_state(stepped(fresh().state, 1)).to_dict()
    data["state"]["execution"]["stepExecutions"].append(part)
    session = AgentSession.from_dict(data)
    with pytest.raises(InvalidField) as refused:
        await sessions.create(session)
    assert refused.value.field == place
    assert not await sessions.exists("a")


async def test_a_listing_filters_and_pages_newest_first(sessions: SessionStore) -> None:
    made: list[SessionHeader] = []
    for number in range(40):
        session = fresh(f"s{number}", name="ann" if number % 2 else "bo:b")
        if number % 4 == 0:
            session = session.suspended()
        made.append((await sessions.create(session)).header)
    newest = [header.session_id for header in reversed(made)]
    assert await ids(sessions) == newest
    bobs = [f"s{n}" for n in range(39, -1, -1) if n % 2 == 0]
    suspended = [f"s{n}" for n in range(39, -1, -1) if n % 4 == 0]
    assert await ids(sessions, agent_name="bo:b") == bobs
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == suspended
    assert await ids(sessions, status=SessionStatus.SUSPENDED, agent_name="bo:b") == suspended
    assert await ids(sessions, status=SessionStatus.SUSPENDED, agent_name="ann") == []
    assert await ids(sessions, agent_name="bo") == []
    walked: list[str] = []
    cursor: str | None = None
    while True:
        page = await sessions.list_headers(after=cursor, limit=7)
        walked += [header.session_id for header in page.headers]
        if page.at_end:
            break
        cursor = page.cursor
        await sessions.create(fresh())  # what comes meanwhile stands before the first page
    assert walked == newest


async def test_a_listing_follows_a_changed_status_and_forgets_what_is_gone(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    brief = SessionStore(store, lifetime=timedelta(milliseconds=1))
    session = await sessions.create(fresh("a"))
    await sessions.save(session.suspended())
    await sessions.create(fresh("b"))
    # In the shard of another one, whose listing outlives it.
    gone = next(f"gone{n}" for n in count() if agent_shard(f"gone{n}") == agent_shard("a"))
    await brief.create(fresh(gone))
    await sessions.create(fresh("deleted"))
    await sessions.delete("deleted")

    async def expired() -> bool:
        return not await sessions.exists(gone)

    await eventually(expired, "the session has expired")
    assert await ids(sessions) == ["b", "a"]
    assert await ids(sessions, status=SessionStatus.ACTIVE) == ["b"]
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == ["a"]
    indexes = map(store.base.keys.agent_sessions, range(16))
    sender = store.transport.sender
    found = [await sender.send("ZRANGE", key, 0, -1, repeatable=True) for key in indexes]
    names = Counter(member.rpartition(b":")[2] for members in found for member in members)
    # Two lists were looked at; the other two of the expired one go when they are, or at a save.
    assert names.pop(gone.encode(), 0) in (0, 2)
    assert names == {b"a": 4, b"b": 4}
    await sessions.save((await sessions.get("a")).resumed())
    left = await sender.send(
        "ZRANGE", store.base.keys.agent_sessions(agent_shard("a")), 0, -1, repeatable=True
    )
    assert not [member for member in left if member.endswith(gone.encode())]


async def test_an_expired_session_that_is_created_anew_is_listed_once_and_as_it_is(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    # Places of a former life that no save has swept yet.
    index, sender = store.base.keys.agent_sessions(agent_shard("a")), store.transport.sender
    places = [f"{tag}:0000000000000001:a" for tag in ("/", "suspended/")]
    await sessions.create(fresh("a"))
    for place in places:
        await sender.send("ZADD", index, 0, place, repeatable=True)
    assert (await ids(sessions)).count("a") == 1
    assert await ids(sessions, status=SessionStatus.SUSPENDED) == []


async def test_a_page_among_many_that_have_expired_costs_a_few_round_trips_to_find(
    store: RedisStateStore,
) -> None:
    sessions = SessionStore(store)
    await sessions.create(fresh("kept", name="kept"))
    index, sender = store.base.keys.agent_sessions(agent_shard("kept")), store.transport.sender
    for n in range(900):
        # Of other lives of one id: what is listed is there, and is none of them.
        place = f"/:{n + 10**15:016d}:kept"
        await sender.send("ZADD", index, 0, place, repeatable=True)
    requested = await info(store, "total_commands_processed")
    assert await ids(sessions, limit=1) == ["kept"]
    spent = await info(store, "total_commands_processed") - requested
    # A look into each place, and sixteen lists for each hundred.
    assert spent < 900 + 16 * 12 + 50, spent


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 1_001}, {"after": "x"}])
async def test_a_listing_refuses_what_is_no_page(
    options: dict[str, Any], sessions: SessionStore
) -> None:
    with pytest.raises(InvalidField):
        await sessions.list_headers(**options)


async def plant(store: RedisStateStore, start: int, end: int) -> None:
    """Store sessions with states of 2 kB, a thousand at once."""
    keys, scripts = store.base.keys, store.base.scripts
    sample = json.dumps(SessionHeader(session_id="S", agent_name="a", version=1).to_dict())

    def planted(session: str) -> Awaitable[Reply]:
        header = sample.replace('"S"', f'"{session}"').encode()
        return scripts.save_session(
            keys.agent_session(session),
            {"header": header, "head": b"x" * 2_000},
            index=keys.agent_sessions(agent_shard(session)),
            expiries=keys.agent_expiries(agent_shard(session)),
            session_id=session,
            born="1",
            tags="/ active/ /a active/a",
            expected=0,
            base="",
            dropped=(),
            write="w",
            ttl_ms=3_600_000,
        )

    for portion in range(start, end, 1_000):
        await asyncio.gather(*(planted(f"s{n}") for n in range(portion, portion + 1_000)))


@pytest.mark.slow
@pytest.mark.role("admin")
@pytest.mark.parametrize("number", [10_000, pytest.param(100_000, marks=pytest.mark.full)])
async def test_a_page_of_many_sessions_costs_what_one_of_1_000_does(
    store: RedisStateStore, sessions: SessionStore, number: int
) -> None:
    async def cost(**options: Any) -> tuple[int, int]:
        before = (
            await info(store, "total_net_output_bytes"),
            await info(store, "total_commands_processed"),
        )
        page = await sessions.list_headers(limit=100, **options)
        assert len(page.headers) == 100
        after = (
            await info(store, "total_net_output_bytes"),
            await info(store, "total_commands_processed"),
        )
        return after[0] - before[0], after[1] - before[1]

    await plant(store, 0, 1_000)
    few = await cost(), await cost(status=SessionStatus.ACTIVE, agent_name="a")
    await plant(store, 1_000, number)
    many = await cost(), await cost(status=SessionStatus.ACTIVE, agent_name="a")
    for (few_bytes, few_commands), (many_bytes, many_commands) in zip(few, many, strict=True):
        assert many_commands == few_commands
        assert many_bytes < 2 * few_bytes
        assert many_bytes < 100 * 2_000  # less than the states alone
    await store.delete_everything()


@pytest.mark.parametrize("steps", sizes(400, 1_000))
async def test_many_steps_cost_the_same_each_and_load_like_their_bytes(
    store: RedisStateStore, sessions: SessionStore, steps: int
) -> None:
    session = await sessions.create(fresh("a"))
    first, last = range(5, 15), range(steps - 10, steps)
    costs: dict[int, int] = {}
    for number in range(steps):
        session = session.with_state(stepped(session.state, number))
        counted = number in first or number in last
        before = await info(store, "total_net_input_bytes") if counted else 0
        session = await sessions.save(session)
        if counted:
            costs[number] = await info(store, "total_net_input_bytes") - before
    early, late = (sum(costs[number] for number in numbers) / 10 for numbers in (first, last))
    assert late / early < 1.1, f"{late:.0f} bytes at the end, {early:.0f} at the beginning"

    key = store.base.keys.agent_session("a")

    async def fetch() -> None:
        assert len(await store.base.fetch(key)) > 4 * steps

    async def load() -> None:
        assert (await sessions.get("a")).state.step_count == steps

    async def timed(work: Callable[[], Awaitable[None]]) -> float:
        start = perf_counter()
        await work()
        return perf_counter() - start

    # In turn, so that a noise is in both, and the best of each; among others it takes more tries.
    ratio, pairs = inf, list[tuple[float, float]]()
    while ratio >= 2 and len(pairs) < 200:
        pairs += [(await timed(load), await timed(fetch)) for _ in range(20)]
        ratio = min(loaded for loaded, _ in pairs) / min(fetched for _, fetched in pairs)
    assert ratio < 2, f"a load takes {ratio:.2f} times as long as its bytes"


async def test_a_loaded_session_reads_a_part_only_when_it_is_looked_at(
    sessions: SessionStore, store: RedisStateStore
) -> None:
    state = fresh().state
    for number in range(3):
        state = stepped(state, number)
    await sessions.create(fresh("a").with_state(state))
    sender, key = store.transport.sender, store.base.keys.agent_session("a")
    for name in ("s:0", "m0:0"):
        await sender.send("HSET", key, name, b"not JSON", repeatable=True)
    loaded = await sessions.get("a")
    assert loaded.state.execution is not None
    assert loaded.state.execution.step_executions[-1].step == state.steps[-1]
    saved = await sessions.save(loaded.with_state(stepped(loaded.state, 3)))
    assert saved.version == 2
    with pytest.raises(InvalidField):
        saved.to_dict()


@pytest.mark.parametrize("processes", sizes(3, 8))
@pytest.mark.role("admin")
async def test_eight_processes_saving_one_session_lose_nothing(
    settings: Settings, processes: int
) -> None:
    saves = 125 * processes
    async with RedisStateStore(settings) as store:
        await SessionStore(store).create(fresh("a"))
        arguments = [
            {
                "url": settings.url.get_secret_value(),
                "namespace": settings.namespace,
                "name": f"p{number}",
                "saves": 125,
                "processes": processes,
            }
            for number in range(processes)
        ]
        results = await run_processes("save_session", arguments)
        session = await SessionStore(store).get("a")
        versions = sorted(version for result in results for version in result["versions"])
        refused = sum(result["refused"] for result in results)
        assert len(versions) + refused == saves
        assert refused > 0
        # From 1, as it was created, one for each save that was not refused.
        assert versions == list(range(2, saves + 2 - refused))
        assert session.version == saves + 1 - refused
        stated = [message.text for message in session.state.store.section("messages")]
        expected = {text for result in results for text in result["said"]}
        assert len(stated) == len(versions)
        assert set(stated) == expected
        await store.delete_everything()


async def test_a_stale_lease_cannot_save(sessions: SessionStore, store: RedisStateStore) -> None:
    session = await sessions.create(fresh("a"))
    leases = Leases(store.base.scripts, keep_ms=60_000)
    key = store.base.keys.agent_lease("a")
    former = await leases.acquire(key, duration_ms=1)
    assert former is not None
    session = await sessions.save(session, fence=former.fence)

    async def taken() -> bool:
        return await leases.acquire(key, duration_ms=60_000) is not None

    await eventually(taken, "the lease has run out and is taken over")
    with pytest.raises(LeaseLost):
        await sessions.save(session, fence=former.fence)


MODEL = LlmConfig(api_url="https://x", api_key="s3cr3t", model="m")


def keyed(session_id: str) -> AgentSession:
    definition = AgentDefinition(name="coder", llm_config=MODEL)
    return AgentSession.fresh(definition, session_id=session_id)


@pytest.mark.parametrize("protect", ["keep", "redact", "encrypt"])
async def test_a_models_key_is_protected_at_rest(protect: Any, store: RedisStateStore) -> None:
    key = SecretStr(Fernet.generate_key().decode())
    sessions = SessionStore(store, protect=protect, encryption_key=key)
    session = await sessions.create(keyed("a"))
    assert session.state.llm_config == MODEL
    session = await sessions.save(session.with_state(stepped(session.state, 1)))
    stored = b"".join((await fields_of(store, "a")).values())
    assert (b"s3cr3t" in stored) is (protect == "keep")
    loaded = await sessions.get("a")
    kept = "[redacted]" if protect == "redact" else "s3cr3t"
    assert loaded.state.llm_config is not None
    assert loaded.state.llm_config.api_key == kept
    assert isinstance(loaded.definition.llm_config, LlmConfig)
    assert loaded.definition.llm_config.api_key == kept
    assert "s3cr3t" not in repr(session) + repr(loaded) + repr(loaded.redacted().to_dict())
    again = await sessions.save(loaded)
    assert (await sessions.get("a")).to_dict() == again.to_dict()


@pytest.mark.parametrize("protect", ["redact", "encrypt"])
async def test_a_key_that_was_stored_in_clear_is_protected_by_the_next_save(
    protect: Any, store: RedisStateStore
) -> None:
    params = FrozenMap({"api-version": "1", "subscription-key": "s3cr3t too"})
    model = MODEL.changed(query_params=params)
    definition = AgentDefinition(name="coder", llm_config=model)
    await SessionStore(store).create(AgentSession.fresh(definition, session_id="a"))
    key = SecretStr(Fernet.generate_key().decode())
    sessions = SessionStore(store, protect=protect, encryption_key=key)
    loaded = await sessions.get("a")
    assert loaded.definition.llm_config == model
    saved = await sessions.save(loaded.with_state(stepped(loaded.state, 1)))
    stored = b"".join((await fields_of(store, "a")).values())
    assert b"s3cr3t" not in stored
    assert b'"api-version":"1"' in stored
    found = (await sessions.get("a")).definition.llm_config
    assert isinstance(found, LlmConfig)
    assert found == (model.redacted() if protect == "redact" else model)
    # What is protected already is not written again.
    before = (await fields_of(store, "a"))["definition"]
    await sessions.save(saved.with_state(stepped(saved.state, 2)))
    again = await sessions.get("a")
    await sessions.save(again.with_state(stepped(again.state, 3)))
    assert (await fields_of(store, "a"))["definition"] == before


async def test_what_is_redacted_holds_no_key_in_any_form(store: RedisStateStore) -> None:
    sessions = SessionStore(store)
    params = FrozenMap({"subscription-key": "s3cr3t too"})
    definition = AgentDefinition(name="coder", llm_config=MODEL.changed(query_params=params))
    await sessions.create(AgentSession.fresh(definition, session_id="a"))
    loaded = await sessions.get("a")
    read = AgentSession.from_dict(loaded.to_dict())
    for session in (loaded, read):
        assert b"s3cr3t" in pickle.dumps(session)
        redacted = session.redacted()
        assert b"s3cr3t" not in pickle.dumps(redacted)
        assert "s3cr3t" not in json.dumps(redacted.to_dict()) + repr(session)
        assert list(redacted.to_dict()["definition"]) == list(session.to_dict()["definition"])


@pytest.mark.parametrize("count_", [b'{"m0":"x"}', b'{"m0":1.5}', b'{"m0":-1}', b'{"m0":true}'])
async def test_a_bad_count_of_parts_is_told(
    count_: bytes, sessions: SessionStore, store: RedisStateStore
) -> None:
    await sessions.create(fresh("a"))
    key, sender = store.base.keys.agent_session("a"), store.transport.sender
    await sender.send("HSET", key, "parts", count_, repeatable=True)
    with pytest.raises(CorruptState, match="parts"):
        await sessions.get("a")


async def test_a_key_is_opened_by_nobody_else(store: RedisStateStore) -> None:
    mine, other = (SecretStr(Fernet.generate_key().decode()) for _ in range(2))
    await SessionStore(store, protect="encrypt", encryption_key=mine).create(keyed("a"))
    with pytest.raises(ConfigError, match="not the one"):
        await SessionStore(store, protect="encrypt", encryption_key=other).load("a")
    sealed = await SessionStore(store).get("a")
    assert sealed.state.llm_config is not None
    assert sealed.state.llm_config.api_key.startswith("fernet:")
    await SessionStore(store).save(sealed)
    opened = await SessionStore(store, protect="encrypt", encryption_key=mine).get("a")
    assert opened.state.llm_config == MODEL


@pytest.mark.parametrize(
    "options",
    [
        {"protect": "hide"},
        {"protect": "encrypt"},
        {"protect": "encrypt", "encryption_key": SecretStr("s3cr3t")},
    ],
)
def test_a_protection_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    store = RedisStateStore.from_url("redis://nobody.invalid:1/0")
    with pytest.raises(ConfigError) as refused:
        SessionStore(store, **options)
    assert "s3cr3t" not in str(refused.value)


async def test_an_execution_is_recorded_once_and_outlives_its_session(
    store: RedisStateStore,
) -> None:
    history = ExecutionHistory(store)
    agent = "00000001-0000-4000-8000-000000000001"
    assert await history.last(agent) is None
    assert list(await history.all(agent)) == []
    state = stepped(AgentState(agent_id=agent), 1).with_execution_completed()
    summary = summary_of(state)
    assert await history.record(agent, summary)
    assert not await history.record(agent, summary)
    later = summary_of(stepped(state.for_next_execution(), 2).with_failure(ValueError("no")))
    assert await history.record(agent, later)
    assert await history.count(agent) == 2
    assert await history.last(agent) == later
    assert list(await history.all(agent)) == [summary, later]
    assert list(summary) == [
        "executionId",
        "executionNumber",
        "status",
        "stepCount",
        "usage",
        "duration",
        "startedAt",
        "completedAt",
        "stopReason",
        "stopMessage",
        "errorCount",
    ]
    assert (later["status"], later["errorCount"]) == ("failed", 1)
    with pytest.raises(InvalidField):
        await history.record(agent, {})
    with pytest.raises(InvalidField):
        summary_of(AgentState())
