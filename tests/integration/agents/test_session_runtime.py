from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentSession,
    SessionEvent,
    SessionRuntime,
    SessionStage,
    SessionStatus,
    SessionStore,
)
from redis_state.errors import LeaseLost, SessionBusy, SessionConflict, SessionNotFound
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from tests.support.agents.sessions import fresh
from tests.support.scripts.replies import lives
from tests.support.servers.faults import Proxy


class RecordingRuntime:
    """A runtime that records hooks and events in the order they come."""

    def __init__(self, store: RedisStateStore) -> None:
        self.notes: list[str] = []
        self.events: list[SessionEvent] = []
        self.runtime = SessionRuntime(SessionStore(store), listeners=[self.hear])
        for stage in SessionStage:
            self.runtime.add_hook(stage, self.noting(stage.value))

    def hear(self, event: SessionEvent) -> None:
        self.notes.append(event.kind.value)
        self.events.append(event)

    def noting(self, note: str) -> Any:
        def hook(session: AgentSession) -> AgentSession:
            self.notes.append(note)
            return session

        return hook

    def take(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes


@pytest.fixture
def reported(store: RedisStateStore) -> RecordingRuntime:
    return RecordingRuntime(store)


def rename(session: AgentSession) -> AgentSession:
    return session.with_state(session.state.with_metadata(renamed=True))


async def test_hooks_and_events_come_in_the_originals_order(reported: RecordingRuntime) -> None:
    await reported.runtime.create(fresh("a"))
    assert reported.take() == [
        "before_create",
        "before_save",
        "after_save",
        "after_create",
        "SessionSaved",
    ]
    await reported.runtime.execute("a", rename)
    assert reported.take() == [
        "after_load",
        "SessionLoaded",
        "after_action",
        "before_save",
        "SessionActionExecuted",
        "after_save",
        "SessionSaved",
    ]
    executed = reported.events[-2].facts
    assert executed == {
        "sessionId": "a",
        "action": "rename",
        "beforeVersion": 1,
        "afterVersion": 1,
        "beforeStatus": "active",
        "afterStatus": "active",
    }
    assert reported.events[-1].facts == {"sessionId": "a", "version": 2, "status": "active"}
    await reported.runtime.get("a")
    assert reported.take() == ["after_load", "SessionLoaded"]


async def test_a_higher_priority_comes_first_and_equals_as_they_were_added(
    reported: RecordingRuntime,
) -> None:
    for name, priority in (("low", -1), ("first", 5), ("second", 5)):
        reported.runtime.add_hook(SessionStage.AFTER_LOAD, reported.noting(name), priority=priority)
    await reported.runtime.create(fresh("a"))
    reported.take()
    await reported.runtime.get("a")
    assert reported.take() == ["first", "second", "after_load", "low", "SessionLoaded"]


async def test_hooks_change_what_goes_on_and_after_a_save_only_what_is_returned(
    store: RedisStateStore,
) -> None:
    runtime = SessionRuntime(SessionStore(store))

    async def suspend(session: AgentSession) -> AgentSession:
        await asyncio.sleep(0)
        return session.suspended()

    runtime.add_hook(SessionStage.BEFORE_SAVE, suspend)
    runtime.add_hook(SessionStage.AFTER_SAVE, rename)
    created = await runtime.create(fresh("a"))
    assert created.status is SessionStatus.SUSPENDED
    assert created.state.context.metadata == {"renamed": True}
    stored = await runtime.sessions.get("a")
    assert stored.status is SessionStatus.SUSPENDED
    assert stored.state.context.metadata == {}


async def test_failures_are_told_except_the_actions_own(reported: RecordingRuntime) -> None:
    with pytest.raises(SessionNotFound):
        await reported.runtime.execute("a", rename)
    assert reported.take() == ["SessionLoadFailed"]
    assert reported.events[-1].facts == {
        "sessionId": "a",
        "error": "no session 'a'",
        "errorType": "SessionNotFound",
    }
    await reported.runtime.create(fresh("a"))
    reported.take()

    def fail(_: AgentSession) -> AgentSession:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await reported.runtime.execute("a", fail)
    assert reported.take() == ["after_load", "SessionLoaded"]
    with pytest.raises(SessionConflict):
        await reported.runtime.execute("a", meddling(reported.runtime))
    assert reported.take()[-2:] == ["SessionActionExecuted", "SessionSaveFailed"]
    reported.runtime.add_hook(SessionStage.AFTER_SAVE, fail)
    with pytest.raises(ValueError, match="no"):
        await reported.runtime.execute("a", rename)
    assert reported.take()[-2:] == ["after_save", "SessionSaveFailed"]
    assert (await reported.runtime.get("a")).state.context.metadata == {"renamed": True}


def meddling(runtime: SessionRuntime, times: int = 1) -> Any:
    """Make an action in whose midst somebody else saves, so often."""
    left = [times]

    async def action(session: AgentSession) -> AgentSession:
        if left[0]:
            left[0] -= 1
            other = await runtime.sessions.get(session.session_id)
            await runtime.sessions.save(other.with_state(other.state.with_user_message("other")))
        return session.with_state(session.state.with_user_message("mine"))

    return action


async def test_a_pure_action_is_done_again_on_what_somebody_else_saved(
    reported: RecordingRuntime,
) -> None:
    await reported.runtime.create(fresh("a"))
    session = await reported.runtime.execute("a", meddling(reported.runtime, 3), pure=True)
    assert [m.text for m in session.state.messages] == ["other", "other", "other", "mine"]
    assert session.version == 5


async def test_many_pure_actions_at_once_lose_nothing(store: RedisStateStore) -> None:
    runtime = SessionRuntime(SessionStore(store))
    await runtime.create(fresh("a"))

    def say(text: str, session: AgentSession) -> AgentSession:
        return session.with_state(session.state.with_user_message(text))

    stated = [str(n) for n in range(20)]
    await asyncio.gather(*(runtime.execute("a", partial(say, text), pure=True) for text in stated))
    session = await runtime.get("a")
    assert sorted(m.text for m in session.state.messages) == sorted(stated)
    assert session.version == 21


async def test_one_at_a_time_holds_a_session_and_the_next_waits(store: RedisStateStore) -> None:
    runtime = SessionRuntime(SessionStore(store))
    await runtime.create(fresh("a"))
    async with runtime.holding("a", lease_s=0.3) as first:
        with pytest.raises(SessionBusy):
            async with runtime.holding("a"):
                pytest.fail("somebody else holds it")
        waiting = asyncio.create_task(_version_under_lease(runtime))
        saved = await runtime.execute("a", rename, fence=first.fence)
        assert saved.version == 2
    assert await waiting == 3
    key = store.base.keys.agent_lease("a")
    assert (await lives(store.base.scripts, key))[0] > 0


async def _version_under_lease(runtime: SessionRuntime) -> int:
    async with runtime.holding("a", wait_s=20) as lease:
        return (await runtime.execute("a", rename, fence=lease.fence)).version


@pytest.mark.parametrize("end", ["returned", "failed", "cancelled"])
async def test_a_server_that_is_away_at_the_end_of_a_block_does_not_hide_what_came_of_it(
    settings: Settings, end: str
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        changes = {"url": SecretStr(proxy.url), "call_timeout_s": 0.3}
        async with RedisStateStore(settings.model_copy(update=changes)) as store:
            runtime, away = SessionRuntime(SessionStore(store)), asyncio.Event()

            async def held() -> str:
                async with runtime.holding("a"):
                    proxy.refuse()
                    proxy.cut()
                    away.set()
                    if end == "failed":
                        raise SessionConflict("a", expected=1, actual=2)
                    if end == "cancelled":
                        await asyncio.get_running_loop().create_future()
                    return end

            holding = asyncio.create_task(held())
            await away.wait()
            if end == "cancelled":
                holding.cancel()
            await asyncio.wait({holding})
            if end == "returned":
                assert holding.result() == end
            elif end == "failed":
                assert isinstance(holding.exception(), SessionConflict)
            else:
                assert holding.cancelled()


async def test_a_holder_that_was_taken_over_hears_of_it_and_can_save_no_more(
    store: RedisStateStore,
) -> None:
    runtime = SessionRuntime(SessionStore(store))
    await runtime.create(fresh("a"))
    key = store.base.keys.agent_lease("a")
    leases = Leases(store.base.scripts, keep_ms=60_000)
    async with runtime.holding("a", lease_s=0.1) as stale:
        # As if this process had stalled: its lease is given back behind its back, and taken.
        await leases.release(stale.held)
        later = await leases.acquire(key, duration_ms=60_000)
        assert later is not None
        await eventually(stale.lost.is_set, "the holder hears that it was taken over")
        with pytest.raises(LeaseLost):
            await runtime.execute("a", rename, fence=stale.fence)
    assert (await runtime.execute("a", rename, fence=later.fence)).version == 2
