"""A session is stored in parts: each is written once, and read when it is looked at."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentSession,
    AgentState,
    SessionStore,
)
from redis_state.errors import (
    CorruptState,
    InvalidField,
)
from tests.support.agents.sessions import fields_of, fresh, ids, info, stepped
from tests.support.sizes import sizes

FIXTURES = Path(__file__).resolve().parents[5] / "shared" / "fixtures" / "agent_state"
FILES = sorted(FIXTURES.glob("*.json"))
PAST = "2025-01-01T00:00:00+00:00"


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


@pytest.mark.parametrize("count_", [b'{"m0":"x"}', b'{"m0":1.5}', b'{"m0":-1}', b'{"m0":true}'])
async def test_a_bad_count_of_parts_is_told(
    count_: bytes, sessions: SessionStore, store: RedisStateStore
) -> None:
    await sessions.create(fresh("a"))
    key, sender = store.base.keys.agent_session("a"), store.transport.sender
    await sender.send("HSET", key, "parts", count_, repeatable=True)
    with pytest.raises(CorruptState, match="parts"):
        await sessions.get("a")
