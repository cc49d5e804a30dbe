"""What the doctor and a worker's metrics report of durable events."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import asyncio

import psycopg
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.doctor.finding import Verdict
from redis_state.doctor.questions.durable_events import durable_event_findings
from redis_state.models import StoredEvent
from redis_state.testing import eventually
from redis_state.worker.observe.durable_events import count_events_regularly
from redis_state.worker.observe.stats import WorkerStats
from tests.support.servers.postgres import OwnPostgres


async def findings(settings: Settings) -> list[tuple[Verdict, str]]:
    async with RedisStateStore(settings) as store:
        return [(each.state, each.says) async for each in durable_event_findings(store)]


async def test_the_doctor_reports_the_postgresql_of_durable_events(
    settings: Settings, synced: Settings, postgres: OwnPostgres
) -> None:
    assert await findings(settings) == []
    async with RedisStateStore(synced) as store:
        await store.save_event(StoredEvent("t", 1.0, "k", None, None, {}))
    assert await findings(synced) == [(Verdict.SOUND, "reached, schema version 2")]
    nowhere = "postgresql://u:s3cret@127.0.0.1:1/db"
    away = synced.model_copy(update={"durable_events": SecretStr(nowhere)})
    ((state, says),) = await findings(away)
    assert state is Verdict.FINDING
    assert "cannot be reached" in says
    assert "s3cret" not in says
    with psycopg.connect(postgres.url, autocommit=True) as beside:
        beside.execute("CREATE ROLE reads_nothing LOGIN")
        beside.execute("CREATE DATABASE bare")
    narrow = postgres.url.replace("postgres@", "reads_nothing@")
    refused = synced.model_copy(update={"durable_events": SecretStr(narrow)})
    ((state, says),) = await findings(refused)
    assert (state, "InsufficientPrivilege" in says) == (Verdict.FINDING, True)
    bare = postgres.url.replace("/postgres?", "/bare?")
    without = synced.model_copy(update={"durable_events": SecretStr(bare)})
    assert await findings(without) == [
        (Verdict.FINDING, "its schema redis_state_events is missing")
    ]


async def test_a_worker_counts_the_traces_that_wait(delayed: Settings) -> None:
    slow = delayed.model_copy(update={"durable_events_delay": delayed.events_ttl})
    stats = WorkerStats()
    async with RedisStateStore(slow) as left:
        await left.save_event(StoredEvent("t", 1.0, "k", None, None, {}))
        counting = asyncio.create_task(count_events_regularly(left, stats))
        await eventually(lambda: stats.event_backlog.value is not None, "the worker has counted")
        counting.cancel()
        assert stats.event_backlog.value is not None
        assert stats.event_backlog.value[0] == 1
