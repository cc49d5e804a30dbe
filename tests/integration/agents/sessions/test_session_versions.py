"""A session is created once and saved over the version that was read, whoever saves too."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentSession,
    SessionStatus,
    SessionStore,
)
from redis_state.errors import (
    InvalidField,
    LeaseLost,
    SessionConflict,
    SessionNotFound,
    VersionConflict,
)
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from tests.support.agents.sessions import fresh
from tests.support.servers.faults import Proxy, run_processes
from tests.support.sizes import sizes


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
