"""What is saved and read, by many callers, with any ids and values, and erased again."""

from __future__ import annotations

import asyncio
import math
import zlib
from datetime import timedelta
from typing import LiteralString

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

import psycopg
from pydantic import SecretStr

from redis_state import BackendUnavailable, ConfigError, RedisStateStore, Settings
from redis_state.models import StoredEvent, Trajectory
from redis_state.stores.durable_events.store import DurableEventStore
from redis_state.stores.durable_events.waiting import trace_entry
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker import TaskClient
from tests.support.servers.postgres import OwnPostgres

IDS = (
    "'; DROP TABLE redis_state_events.events; --",
    '"%s" %(session)s $1 {} \\',
    "nul\0nul",
    "\ud800 lone \udfff",
    "\\u0000",
    "\\~" + "0" * 64,
    "".join(map(chr, range(0x4E00, 0x4E00 + 3_000))),
    "",
)


async def moved(store: RedisStateStore) -> None:
    events = store.events
    assert isinstance(events, DurableEventStore)

    async def empty() -> bool:
        return (await events.backlog()).traces == 0

    await eventually(empty, "PostgreSQL has all events", timeout_s=60)


async def test_events_of_any_ids_and_values_come_back_as_they_were(kept: RedisStateStore) -> None:
    saved: dict[str, list[StoredEvent]] = {}
    for own in IDS:
        payload = {"of": own, own: [1e-300, 10**30, None, "a\0b\ud800"], "big": "x" * 100_000}
        saved[own] = [
            StoredEvent(own, ts, own, own, None, payload) for ts in (1.0, 1.0 + 1e-9, math.inf)
        ]
        await kept.save_events(saved[own])
    for _ in range(2):
        for own, events in saved.items():
            assert await kept.load_history(own) == events
        await moved(kept)
    # What was moved and is saved again stands once.
    for own in IDS:
        await kept.save_event(saved[own][0])
        assert await kept.load_history(own) == saved[own]


async def test_forty_callers_keep_their_order_and_share_transactions(
    kept: RedisStateStore, durable: Settings
) -> None:
    async def call(name: str) -> None:
        for n in range(20):
            await kept.save_event(StoredEvent("shared", 1.0, "k", name, None, {"n": n}))

    async with RedisStateStore(durable) as other:
        await asyncio.gather(*(call(f"c{n}") for n in range(40)))
        await asyncio.gather(
            *(
                other.save_event(StoredEvent("shared", 1.0, "k", "o", None, {"n": n}))
                for n in range(20)
            )
        )
        await moved(kept)
        found = await other.load_history("shared")
    assert len(found) == 41 * 20
    for name in [*(f"c{n}" for n in range(40)), "o"]:
        assert [each.payload["n"] for each in found if each.node_name == name] == list(range(20))


async def test_events_that_redis_has_from_before_are_read_with_the_others(
    store: RedisStateStore, durable: Settings
) -> None:
    before = [StoredEvent("t", 1.0, "k", "before", None, {"n": n}) for n in range(3)]
    await store.save_events(before)
    after = StoredEvent("t", 1.0, "k", "after", None, {})
    async with RedisStateStore(durable) as later:
        await later.save_event(after)
        await later.save_event(before[0])
        assert sorted(map(repr, await later.load_history("t"))) == sorted(
            map(repr, [*before, after])
        )
        await moved(later)
        assert len(await later.load_history("t")) == 4


async def test_a_save_that_nobody_awaits_any_more_is_carried_out(kept: RedisStateStore) -> None:
    event = StoredEvent("t", 1.0, "k", None, None, {})
    saving = asyncio.ensure_future(kept.save_event(event))
    await asyncio.sleep(0)
    saving.cancel()
    await kept.drain(30)
    assert await kept.load_history("t") == [event]


async def test_a_cleared_session_takes_the_events_of_its_traces_along(
    kept: RedisStateStore,
) -> None:
    for trace in ("own", "shared"):
        await kept.save_trajectory(trace, "session", Trajectory(query="q"))
        await kept.save_event(StoredEvent(trace, 1.0, "k", None, None, {}))
    await kept.save_trajectory("shared", "other", Trajectory(query="q"))
    await moved(kept)
    # Of this one Redis has more than PostgreSQL, in `delayed`.
    await kept.save_event(StoredEvent("own", 2.0, "k", None, None, {}))
    await kept.clear_session("session")
    await moved(kept)
    assert await kept.load_history("own") == []
    assert len(await kept.load_history("shared")) == 1
    again = StoredEvent("own", 1.0, "k", None, None, {})
    await kept.save_event(again)
    await moved(kept)
    assert await kept.load_history("own") == [again]


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_an_erased_session_takes_the_events_of_its_traces_along(
    kept: RedisStateStore,
) -> None:
    for trace in ("own", "shared"):
        await kept.save_trajectory(trace, "session", Trajectory(query="q"))
        await kept.save_event(StoredEvent(trace, 1.0, "k", None, None, {}))
    await kept.save_trajectory("shared", "other", Trajectory(query="q"))
    await moved(kept)
    await kept.save_event(StoredEvent("own", 2.0, "k", None, None, {}))
    counted = await kept.forget("session", dry_run=True)
    assert counted.redis["traces"] == 2
    assert len(await kept.load_history("own")) == 2
    report = await kept.forget("session")
    assert "1 traces belong to another session too" in report.kept["events of shared traces"]
    await moved(kept)
    assert await kept.load_history("own") == []
    assert len(await kept.load_history("shared")) == 1
    await kept.forget("other")
    assert await kept.load_history("shared") == []


@pytest.mark.worker
@pytest.mark.role("any", why="it reads the names of all keys")
async def test_an_erased_session_takes_the_events_of_traces_that_only_its_tasks_name_along(
    kept: RedisStateStore,
) -> None:
    async with TaskClient(kept) as client:
        for session, trace in (("mine", "own"), ("mine", "both"), ("its", "both")):
            await client.submit("work", session_id=session, trace_id=trace, delay=timedelta(days=9))
        for trace in ("own", "both"):
            await kept.save_event(StoredEvent(trace, 1.0, "k", None, None, {}))
        # In `delayed`, too, only PostgreSQL has them then.
        await moved(kept)
        for dry_run in (True, False):
            report = await kept.forget("mine", dry_run=dry_run)
            assert report.durable_events == 1
            assert report.kept["events of shared traces"].startswith("1 traces")
            assert len(await kept.load_history("own")) == dry_run
        assert len(await kept.load_history("both")) == 1
        assert (await kept.forget("its")).durable_events == 1
    assert await kept.load_history("both") == []


@pytest.mark.parametrize("piece", [2, 1000])
async def test_events_that_are_too_old_are_removed_with_the_places_of_their_traces(
    durable: Settings, postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("redis_state.stores.durable_events.table.PIECE", piece)
    monkeypatch.setattr("redis_state.stores.durable_events.table.COUNTED", piece)
    monkeypatch.setattr("redis_state.stores.durable_events.store.PIECE", piece)
    keeping = durable.model_copy(
        update={"durable_events_retention": timedelta(days=30), "events_ttl": timedelta(hours=3)}
    )
    aged: LiteralString = """
        UPDATE redis_state_events.events SET saved_at = saved_at - interval '31 days'
        WHERE namespace = %s AND trace_id LIKE 'old%%'"""
    traces: LiteralString = """
        UPDATE redis_state_events.traces SET last_ms = last_ms - 31 * 86400000::bigint
        WHERE namespace = %s AND trace_id LIKE 'old%%'"""
    left: LiteralString = """
        SELECT trace_id FROM redis_state_events.traces WHERE namespace = %s ORDER BY trace_id"""
    async with RedisStateStore(keeping) as store, RedisStateStore(durable) as other:
        for trace in ("old-1", "old-2", "young"):
            await store.save_events(StoredEvent(trace, n, "k", None, None, {}) for n in (1.0, 2.0))
        await moved(store)
        with psycopg.connect(postgres.url, autocommit=True) as beside:
            of = [keeping.namespace]
            before = beside.execute(left, of).fetchall()
            beside.execute(aged, of)
            beside.execute(traces, of)
            assert await other.events.retain() == 0
            assert await store.events.retain(dry_run=True) == 4
            assert sum(await asyncio.gather(store.events.retain(), store.events.retain())) == 4
            assert beside.execute(left, of).fetchall() == before[-1:]
            counted = "SELECT count(*) FROM redis_state_events.events WHERE namespace = %s"
            assert beside.execute(counted, of).fetchone() == (2,)


async def test_a_store_that_is_never_closed_leaves_no_connection(durable: Settings) -> None:
    def run() -> None:
        async def save() -> None:
            await RedisStateStore(durable).save_event(StoredEvent("t", 1.0, "k", None, None, {}))

        asyncio.run(save())

    # An open connection would be a warning, which is an error here.
    await asyncio.to_thread(run)
    await asyncio.to_thread(run)
    async with RedisStateStore(durable) as store:
        assert len(await store.load_history("t")) == 1


async def test_many_traces_of_one_shard_are_moved_one_round_after_the_other(
    delayed: Settings,
) -> None:
    names = (f"t{n}" for n in range(10_000))
    traces = [each for each in names if zlib.crc32(trace_entry(each)) % WATCH_SHARDS == 3][:100]
    async with RedisStateStore(delayed) as store:
        events = store.events
        assert isinstance(events, DurableEventStore)
        await asyncio.gather(
            *(store.save_event(StoredEvent(each, 1.0, "k", None, None, {})) for each in traces)
        )

        async def empty() -> bool:
            return (await events.backlog()).traces == 0

        # With a pause after each round it would be a minute.
        await eventually(empty, "PostgreSQL has all events", timeout_s=25)


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
async def test_a_store_that_is_closed_moves_what_it_has_saved_last(
    delayed: Settings, pause_s: float
) -> None:
    async with RedisStateStore(delayed) as store:
        events = store.events
        assert isinstance(events, DurableEventStore)
        saved = 0
        while not events.counts["events"]:
            await store.save_event(StoredEvent(f"t{saved}", 1.0, "k", None, None, {}))
            saved += 1
            # Some of each moment: those of the last are not due when the others are moved.
            await asyncio.sleep(pause_s)
    # No other process moves anything here.
    with psycopg.connect((delayed.durable_events or SecretStr("")).get_secret_value()) as beside:
        found = beside.execute(
            "SELECT count(*) FROM redis_state_events.events WHERE namespace = %s",
            [delayed.namespace],
        )
        assert found.fetchone() == (saved,)


@pytest.mark.role("any", why="it deletes the namespace")
async def test_nothing_that_waits_comes_back_after_all_was_deleted(
    kept: RedisStateStore, durable: Settings
) -> None:
    events = kept.events
    assert isinstance(events, DurableEventStore)
    forget_all = events.forget_all

    async def watched() -> None:
        # As if what is due came just then.
        await forget_all()
        await events.flush()

    events.forget_all = watched  # type: ignore[method-assign]
    await kept.save_event(StoredEvent("t", 1.0, "k", None, None, {}))
    await kept.delete_everything()
    async with RedisStateStore(durable) as other:
        assert await other.load_history("t") == []


@pytest.mark.parametrize("used", [True, False])
async def test_a_closed_store_refuses_saves_and_leaves_nothing_running(
    durable: Settings, *, used: bool
) -> None:
    event = StoredEvent("t", 1.0, "k", None, None, {})
    async with RedisStateStore(durable) as store:
        if used:
            await store.save_event(event)
    with pytest.raises(BackendUnavailable, match="the store is closed"):
        await store.save_event(event)
    assert [
        task for task in asyncio.all_tasks() if task.get_name() == "redis_state forwarder"
    ] == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:s3cret@h/0",
        "postgresql://u:s3cret@h@x/db",
        "postgresql://u:s3cret/x@h/db",
        "postgresql://u:1/s3cret@h/db",
        "postgresql://h/?s3cret=1",
    ],
)
def test_a_url_that_cannot_be_used_is_named_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisStateStore(Settings(durable_events=SecretStr(url)))
    assert "durable_events" in str(caught.value)
    assert "s3cret" not in str(caught.value)
