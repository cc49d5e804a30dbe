"""Agents' sessions in the archive: copied whole once they rest, read with their keys, erased."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import AgentSession, LlmConfig, SessionStore
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import RecordKind
from redis_state.archive.protocol import Archive
from redis_state.erasure import Eraser
from redis_state.errors import ConfigError, SessionNotFound
from redis_state.stores.archive_list import RecordList
from redis_state.transport.keys import WATCH_SHARDS
from tests.support.agents.sessions import fresh, stepped
from tests.support.tasks.archived.archived_records import archive_records, records_due
from tests.support.tasks.crash_states import send

SESSION = "session"
DAY_MS = 86_400_000


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive agents' sessions."""
    return archiving.model_copy(update={"archive_classes": frozenset({"agent_sessions"})})


async def grown(
    sessions: SessionStore, session_id: str = SESSION, *, steps: int = 3
) -> AgentSession:
    """Save a session step by step."""
    session = await sessions.create(fresh(session_id))
    state = session.state
    for number in range(steps):
        state = stepped(state, number)
        session = await sessions.save(session.changed(state=state))
    return session


async def test_a_session_is_copied_whole_and_read_once_it_has_expired(
    live: RedisStateStore, archive: Archive
) -> None:
    sessions = SessionStore(live)
    saved = await grown(sessions)
    assert (await RecordList(live.base).backlog()).records == 1
    assert (await archive_records(live, archive)).copied == {"agent_sessions": 1}
    (record,) = await archive.records(RecordKind.AGENT_SESSION, SESSION)
    assert record.version == saved.version == 4
    # A mark does not hinder a save, and a save is another state.
    again = await sessions.load(SESSION)
    assert again is not None
    later = await sessions.save(again.changed(state=stepped(again.state, 3)))
    assert (await archive_records(live, archive)).copied == {"agent_sessions": 1}
    assert await live.archive.agent_session(SESSION) == await sessions.load(SESSION)
    await send(live, "DEL", live.base.keys.agent_session(SESSION))
    assert await sessions.load(SESSION) is None
    found = await live.archive.agent_session(SESSION)
    assert found is not None
    assert found.to_dict() == later.to_dict()
    assert await live.archive.agent_session("none") is None
    # It goes on as another one.
    with pytest.raises(SessionNotFound):
        await sessions.save(found)
    await sessions.create(found.forked(SESSION))
    await archive_records(live, archive)
    assert len(await archive.records(RecordKind.AGENT_SESSION, SESSION)) == 2
    values = [each.value for each in await live.archive.records(RecordKind.AGENT_SESSION, SESSION)]
    assert [value.version for value in values] == [later.version, 1]


async def test_a_key_that_is_sealed_stays_sealed_in_the_archive(
    live: RedisStateStore, archive: Archive
) -> None:
    key = SecretStr(Fernet.generate_key().decode())
    sessions = SessionStore(live, protect="encrypt", encryption_key=key)
    await sessions.create(fresh(SESSION, llm_config=LlmConfig(api_key="sk-secret")))
    await archive_records(live, archive)
    (record,) = await archive.records(RecordKind.AGENT_SESSION, SESSION)
    assert b"sk-secret" not in record.data
    await send(live, "DEL", live.base.keys.agent_session(SESSION))
    opened = await live.archive.agent_session(SESSION, sessions)
    assert opened is not None
    assert "sk-secret" in str(opened.to_dict())
    closed = await live.archive.agent_session(SESSION)
    assert closed is not None
    assert "sk-secret" not in str(closed.to_dict())


async def test_an_archive_that_is_away_keeps_a_session(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    sessions = SessionStore(live, lifetime=timedelta(hours=2))
    await sessions.create(fresh(SESSION))
    await records_due(live)
    assert (await RecordArchiver(live, away).run_once()).postponed == 1
    key = live.base.keys.agent_session(SESSION)
    assert await send(live, "PTTL", key) > 399 * DAY_MS
    await archive_records(live, archive)
    assert 0 < await send(live, "PTTL", key) <= 7_200_000


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_session_that_is_erased_goes_from_the_archive_too(
    live: RedisStateStore, archive: Archive
) -> None:
    sessions = SessionStore(live)
    for session_id in (SESSION, "other"):
        await grown(sessions, session_id, steps=1)
    await archive_records(live, archive)
    found = await sessions.get(SESSION)
    await sessions.save(found)
    async with Eraser(live, archive) as eraser:
        report = await eraser.forget(SESSION)
    assert report.archive == {"tasks": 0, "updates": 0, "agent_sessions": 1}
    assert await archive.records(RecordKind.AGENT_SESSION, SESSION) == []
    assert len(await archive.records(RecordKind.AGENT_SESSION, "other")) == 1
    for shard in range(WATCH_SHARDS):
        for key_of in (live.base.keys.archive_records, live.base.keys.archive_records_since):
            assert b'"session"' not in b"".join(await send(live, "ZRANGE", key_of(shard), 0, -1))
    await grown(sessions, steps=1)
    await archive_records(live, archive)
    assert len(await archive.records(RecordKind.AGENT_SESSION, SESSION)) == 1


def test_a_lifetime_must_outlast_a_worker_who_is_away(live: RedisStateStore) -> None:
    with pytest.raises(ConfigError, match="lifetime: an archive needs 2 hours"):
        SessionStore(live, lifetime=timedelta(minutes=90))
