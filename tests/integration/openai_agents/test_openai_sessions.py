"""Sessions of the OpenAI Agents SDK in Redis: items, claims, and one run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import Runner, function_tool
from agents.memory import (
    OpenAIResponsesCompactionSession,
    Session,
)
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidField, LeaseLost, PayloadUnreadable, SessionBusy
from redis_state.integrations.openai_agents import RedisStateSession
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.scripts.primitives.logs import LogScripts
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted
from tests.support.samples import HOST_IDS, changed
from tests.support.servers.proxies.command_proxy import CommandProxy

pytestmark = pytest.mark.worker


def said(text: str) -> Any:
    """Make an item."""
    return {"role": "user", "content": text}


async def contents(session: Session, limit: int | None = None) -> list[Any]:
    """Return what stands in a session."""
    return [item["content"] for item in await session.get_items(limit)]  # type: ignore[typeddict-item]


async def enter(session: RedisStateSession) -> None:
    """Enter the block of a session, and leave it."""
    async with session:
        pass


def outside(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Call something as another run does, which is not in the block."""
    return asyncio.create_task(call, context=Context())


def wrapped(session: Session) -> Session:
    """Wrap a session in one of the SDK, which is never asked to compact."""
    return OpenAIResponsesCompactionSession(
        "any", session, should_trigger_compaction=lambda _: False
    )


async def test_items_come_back_in_order_and_are_taken_from_the_end(
    store: RedisStateStore,
) -> None:
    await asyncio.gather(*(used(store, session_id) for session_id in HOST_IDS))


async def used(store: RedisStateStore, session_id: str) -> None:
    """Use a session in all ways."""
    session = RedisStateSession(session_id, store=store)
    assert isinstance(session, Session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items([said(str(n)) for n in range(130)])
    await session.add_items([])
    odd = {"role": "user", "content": [{"text": "\x00 \ud800 é", "n": 2**70, "none": None}]}
    await session.add_items([odd])  # type: ignore[list-item]
    other = RedisStateSession(session_id, store=store)
    assert await other.pop_item() == odd
    assert await contents(other) == [str(n) for n in range(130)]
    assert await contents(other, 2) == ["128", "129"]
    assert await contents(other, 0) == []
    taken = [await session.pop_item() for _ in range(20)]
    assert taken == [said(str(n)) for n in range(129, 109, -1)]
    assert await contents(other, 1) == ["109"]
    await session.clear_session()
    assert await contents(other) == []
    await session.add_items([said("again")])
    assert await contents(other) == ["again"]
    limited = RedisStateSession(session_id, store=store, session_settings={"limit": 0})
    assert await contents(limited) == []
    elsewhere = RedisStateSession(f"{session_id}2", store=store)
    assert await contents(elsewhere) == []


class Interrupted(RedisStateSession):
    """A session whose process ends behind the first step of a change."""

    async def _change(self, name: str, rows: Any, **how: Any) -> None:
        await super()._change(name, rows[:64], **how)
        raise asyncio.CancelledError


@pytest.mark.parametrize("steps", range(4))
async def test_a_change_that_takes_many_items_away_is_completed_whatever_step_it_died_behind(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    real: Any = LogScripts.change_log
    made: list[str] = []

    async def change_or_die(scripts: Any, *keys: Any, **given: Any) -> Any:
        if len(made) == steps:
            raise asyncio.CancelledError
        made.append(given["name"])
        return await real(scripts, *keys, **given)

    # One step takes away, two add.
    old, new = [
        [said(f"{name}{n}") for n in range(count)] for name, count in (("o", 300), ("n", 70))
    ]
    session = RedisStateSession("s", store=store)
    await session.add_items(old)
    monkeypatch.setattr(LogScripts, "change_log", change_or_die)
    with pytest.raises(asyncio.CancelledError) if steps < 3 else nullcontext():
        await session.change_once("many", items=new, pops=130)
    monkeypatch.undo()
    assert len(made) == steps
    # What is added meanwhile stays, unless nothing was taken away yet.
    between = [said("of another")] if steps else []
    await session.add_items(between)
    for _ in range(2):
        await session.change_once("many", items=new, pops=130)
    added = 64 * max(min(steps, 3) - 1, 0)
    assert await session.get_items() == [*old[:170], *new[:added], *between, *new[added:]]
    # There are fewer than it is to take away.
    few = RedisStateSession("few", store=store)
    await few.add_items(old[:70])
    for _ in range(2):
        await few.change_once("all", items=new, pops=130)
    assert await few.get_items() == new


async def test_a_change_of_a_name_is_made_once_and_completed_if_it_was_interrupted(
    store: RedisStateStore,
) -> None:
    session = RedisStateSession("s", store=store)
    await session.add_items([said("a"), said("b"), said("c")])
    for _ in range(2):
        await session.change_once("run", items=[said("d"), said("e")], pops=2)
    assert await contents(session) == ["a", "d", "e"]
    many = [said(str(n)) for n in range(130)]
    # Of an interrupted change the first step of three is there.
    with pytest.raises(asyncio.CancelledError):
        await Interrupted("s", store=store).change_once("many", items=many, clears=True)
    await session.add_items([said("between")])
    for _ in range(2):
        await session.change_once("many", items=many, clears=True)
    expected = [str(n) for n in range(130)]
    assert await contents(session) == [*expected[:64], "between", *expected[64:]]
    await session.clear_session()
    await session.change_once("many", items=many, clears=True)
    await session.change_once("run", items=[said("d"), said("e")], pops=2)
    assert await contents(session) == []
    with pytest.raises(InvalidField, match="items"):
        await session.add_items(["text"])  # type: ignore[list-item]
    bounded = RedisStateSession("bounded", store=store, max_items=10)
    await bounded.add_items([said(str(n)) for n in range(100)])
    assert (await contents(bounded))[-1] == "99"
    assert len(await contents(bounded)) <= 11


async def test_a_full_session_begins_with_a_message(store: RedisStateStore) -> None:
    made: Any = {"type": "function_call", "call_id": "1", "name": "pay", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "1", "output": "paid"}
    answer: Any = {"role": "assistant", "content": "paid"}
    items = [said("a"), made, output, answer, said("b"), answer]
    session = RedisStateSession("s", store=store, max_items=4)
    await session.add_items(items)
    assert await session.get_items() == items[4:]
    # Its caller says how many, and the SDK leaves out what has no call.
    assert await session.get_items(4) == items[2:]
    # Nothing is gone here.
    other = RedisStateSession("other", store=store, max_items=10)
    await other.add_items(items[1:])
    assert await other.get_items() == items[1:]
    # There is no message to begin with.
    whole = RedisStateSession("whole", store=store, max_items=2)
    await whole.add_items(items[:3])
    assert await whole.get_items() == items[1:3]


async def test_the_sdks_compaction_replaces_the_items_in_one_step(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gap(_: RedisStateSession) -> None:
        pytest.fail("it is cleared before the others are there")

    client = MagicMock()
    compacted = [{"type": "compaction", "id": str(n), "encrypted_content": "x"} for n in range(70)]
    client.responses.compact = AsyncMock(return_value=SimpleNamespace(output=compacted))
    plain = RedisStateSession("s", store=store)
    await plain.add_items([said(str(n)) for n in range(3)])
    session = OpenAIResponsesCompactionSession("s", plain, client=client, compaction_mode="input")
    with monkeypatch.context() as patched:
        patched.setattr(RedisStateSession, "clear_session", gap)
        await session.run_compaction({"force": True})
    assert await plain.get_items() == compacted
    # One that reads or writes otherwise is asked to clear and to add.
    assert not await Doubled("s", store=store)._atomic_replace_items([said("no")])
    assert not await plain._atomic_replace_items([said("no")] * 1_001)
    assert await plain.get_items() == compacted


class Doubled(RedisStateSession):
    """A session that writes otherwise."""

    async def add_items(self, items: list[Any]) -> None:
        await super().add_items([*items, *items])


@pytest.mark.parametrize("how", ["in a block", "by itself", "wrapped"])
async def test_one_run_at_a_time_is_in_a_session(store: RedisStateStore, how: str) -> None:
    running = 0

    def answered(number: int, items: list[Any]) -> str:
        assert running == 1
        return f"answer {number} to {len(items)}"

    async def begin(_: int) -> None:
        nonlocal running
        running += 1

    def end(_: int) -> None:
        nonlocal running
        running -= 1

    async def chat(number: int) -> None:
        session = RedisStateSession("chat", store=store)
        model = scripted(partial(answered, number), before=begin, after=end)
        block: Any = session if how == "in a block" else nullcontext()
        given = wrapped(session) if how == "wrapped" else session
        async with block:
            agent = agent_of(model)
            await Runner.run(agent, f"question {number}", session=given, run_config=QUIET)

    await asyncio.gather(*(chat(number) for number in range(15)))
    items: Any = await RedisStateSession("chat", store=store).get_items()
    assert len(items) == 30
    for place in range(0, 30, 2):
        number = items[place]["content"].partition(" ")[2]
        answer = items[place + 1]["content"][0]["text"]
        assert answer == f"answer {number} to {place + 1}"


async def test_a_run_that_outlives_the_run_which_began_it_stays_alone_in_the_session(
    store: RedisStateStore,
) -> None:
    ended, all_left = asyncio.Event(), asyncio.Event()
    begun: list[asyncio.Task[Any]] = []
    session = RedisStateSession("s", store=store)

    async def wait(_: int) -> None:
        await ended.wait()

    async def add_later() -> None:
        await all_left.wait()
        await session.add_items([said("later")])

    @function_tool
    async def summarise() -> str:
        agent = agent_of(scripted("a summary", before=wait))
        run = Runner.run(agent, "summarise", session=session, run_config=QUIET)
        begun.extend((asyncio.create_task(run), asyncio.create_task(add_later())))
        return "begun"

    agent = agent_of(scripted([call("summarise")], "done"), tools=[summarise])
    await Runner.run(agent, "go", session=session, run_config=QUIET)
    hasty = RedisStateSession("s", store=store, wait_s=0)
    with pytest.raises(SessionBusy):
        await outside(hasty.add_items([said("between")]))
    ended.set()
    assert (await begun[0]).final_output == "a summary"
    await outside(hasty.add_items([said("next")]))
    # Its block was left by all. The write claims the session for itself.
    all_left.set()
    await begun[1]
    items: Any = await session.get_items()
    people = [item["content"] for item in items if item.get("role") == "user"]
    assert sorted(people[:2]) == ["go", "summarise"]
    assert people[2:] == ["next", "later"]


async def test_a_block_in_a_run_belongs_to_the_run(store: RedisStateStore) -> None:
    session = RedisStateSession("s", store=store, wait_s=0)

    @function_tool
    async def note() -> str:
        async with session, RedisStateSession("s", store=store, wait_s=0) as same:
            await same.add_items([said("noted")])
        with pytest.raises(SessionBusy):
            await outside(session.add_items([said("between")]))
        return "done"

    agent = agent_of(scripted([call("note")], "good"), tools=[note])
    result = await Runner.run(agent, "go", session=session, run_config=QUIET)
    assert result.final_output == "good"
    items: Any = await session.get_items()
    people = [item["content"] for item in items if item.get("role") == "user"]
    assert sorted(people) == ["go", "noted"]
    # It was left by all.
    await outside(session.add_items([said("next")]))


async def test_a_run_of_a_thread_without_a_loop_waits_for_its_turn(store: RedisStateStore) -> None:
    session = RedisStateSession("s", store=store)

    def ask() -> str:
        # The SDK uses the loop of the thread.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        other = RedisStateStore(store.settings)
        try:
            agent = agent_of(scripted("good"))
            given = RedisStateSession("s", store=other, wait_s=60)
            result = Runner.run_sync(agent, "go", session=given, run_config=QUIET)
            return str(result.final_output)
        finally:
            loop.run_until_complete(other.aclose())
            loop.close()

    async with session:
        asking = asyncio.create_task(asyncio.to_thread(ask))
        await session.add_items([said("first")])
        done, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not done
    assert await asking == "good"
    items: Any = await session.get_items()
    assert [item["content"] for item in items if item.get("role") == "user"] == ["first", "go"]


async def test_forty_sessions_at_once_are_each_their_own(store: RedisStateStore) -> None:
    async def chat(number: int) -> list[Any]:
        session = RedisStateSession(f"chat {number}", store=store)
        for turn in range(2):
            async with session:
                agent = agent_of(scripted(lambda items: f"{number}: {len(items)}"))
                await Runner.run(agent, f"{turn}", session=session, run_config=QUIET)
        return [item["content"][0]["text"] for item in (await session.get_items())[1::2]]  # type: ignore[typeddict-item, index]

    found = await asyncio.gather(*(chat(number) for number in range(40)))
    assert found == [[f"{number}: {n}" for n in (1, 3)] for number in range(40)]


async def test_who_waits_in_vain_is_told_and_who_lost_the_claim_is_refused(
    store: RedisStateStore,
) -> None:
    first = RedisStateSession("s", store=store, lease_s=60)
    hasty = RedisStateSession("s", store=store, wait_s=0.05)
    patient = RedisStateSession("s", store=store)
    async with first:
        await first.add_items([said("one")])
        # What is called in the block belongs to its run.
        await asyncio.create_task(hasty.add_items([said("of the run")]))
        with pytest.raises(SessionBusy):
            await outside(hasty.add_items([said("between")]))
        with pytest.raises(SessionBusy):
            await outside(enter(hasty))
        # A process that stands still renews nothing. Then another one takes the session over.
        await store.base.scripts.delete(store.base.keys.conversation_lease("s"))
        await outside(patient.add_items([said("two")]))
        with pytest.raises(LeaseLost):
            await first.add_items([said("late")])
        with pytest.raises(LeaseLost):
            await first.pop_item()
        with pytest.raises(LeaseLost):
            await first.clear_session()
    assert await contents(patient) == ["one", "of the run", "two"]


async def test_who_is_cancelled_at_its_turn_leaves_the_session_free(
    store: RedisStateStore, settings: Settings
) -> None:
    hasty = RedisStateSession("s", store=store, wait_s=5)
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as behind,
    ):
        entering = asyncio.create_task(enter(RedisStateSession("s", store=behind, lease_s=60)))

        async def cancel() -> None:
            entering.cancel()

        with proxy.meanwhile("acquire_lease", cancel):
            await asyncio.wait({entering})
        assert entering.cancelled()
        await enter(hasty)


async def test_of_several_that_take_items_each_gets_another(store: RedisStateStore) -> None:
    await RedisStateSession("s", store=store).add_items([said(str(n)) for n in range(20)])
    takers = [RedisStateSession("s", store=store) for _ in range(25)]
    found: Any = await asyncio.gather(*(each.pop_item() for each in takers))
    taken = [item["content"] for item in found if item is not None]
    assert sorted(taken, key=int) == [str(n) for n in range(20)]


async def test_items_are_sealed_and_damaged_ones_are_left_out(store: RedisStateStore) -> None:
    keys = SecretStr(Fernet.generate_key().decode())
    settings = store.settings.model_copy(update={"payload_keys": keys})
    async with RedisStateStore(settings) as sealing:
        session = RedisStateSession("s", store=sealing)
        await session.add_items([said("secret")])
        log = Log(sealing.base.scripts, sealing.base.keys.conversation("s"), Bounds(10, 60_000))
        (row,) = await log.read_all()
        assert b"secret" not in row.data
        assert "secret" not in repr(session)
        with pytest.raises(PayloadUnreadable):
            await RedisStateSession("s", store=store).get_items()
        await log.add((b"damaged", sealing.base.payloads.seal(b"7")))
        await session.add_items([said("more")])
        assert await contents(session) == ["secret", "more"]
        assert await contents(session, 2) == ["secret", "more"]
        assert len(await sealing.unreadable(session_id="s")) == 1
        await sealing.base.drop_unreadable("s")


async def test_terms_of_a_session_that_make_no_sense_are_refused(store: RedisStateStore) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ("", {}, "session_id"),
        (7, {}, "session_id"),
        ("s", {"lease_s": 0}, "lease_s"),
        ("s", {"wait_s": -1}, "wait_s"),
        ("s", {"max_items": 0}, "max_items"),
    ]
    for session_id, options, field in refused:
        with pytest.raises(InvalidField) as caught:
            RedisStateSession(session_id, store=store, **options)
        assert caught.value.field == field
