"""PostgreSQL, Redis or the process dies, or says nothing: no event is lost, and none is doubled."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg
from pydantic import SecretStr

from redis_state import BackendUnavailable, OutcomeUnknown, RedisStateStore, Settings
from redis_state.archive.model import ArchiveBatch
from redis_state.archive.postgres.archive import PostgresArchive
from redis_state.errors import ArchiveUnavailable
from redis_state.models import StoredEvent
from redis_state.postgres.connection import cut
from redis_state.primitives.signal import Row
from redis_state.stores.durable_events import store as event_store
from redis_state.stores.durable_events.store import DurableEventStore
from redis_state.stores.durable_events.table import EventTable
from redis_state.testing import eventually
from redis_state.transport.sending.calls import CallSender
from tests.support.deaths import DEATHS, Recorder
from tests.support.processes import children
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import short_directory
from tests.support.servers.postgres import OwnPostgres
from tests.support.servers.proxies.command_proxy import CommandProxy
from tests.support.sizes import sizes
from tests.support.tasks.archived.archived_tasks import sample_task

pytestmark = pytest.mark.slow

MODES = ("sync", "delayed")


def event(n: int, trace: str = "trace") -> StoredEvent:
    return StoredEvent(trace, float(n // 3), "node_start", f"n{n}", None, {"n": n})


def durable(store: RedisStateStore) -> DurableEventStore:
    assert isinstance(store.events, DurableEventStore)
    return store.events


def chosen(settings: Settings, postgres: OwnPostgres, mode: str, **more: Any) -> Settings:
    named = {"durable_events": SecretStr(postgres.url), "durable_events_mode": mode}
    return settings.model_copy(update={**named, **more})


def rows_of(postgres: OwnPostgres, settings: Settings) -> list[str]:
    with psycopg.connect(postgres.url) as beside:
        found = beside.execute(
            "SELECT node_name FROM redis_state_events.events WHERE namespace = %s ORDER BY n",
            [settings.namespace],
        )
        return [name for (name,) in found.fetchall()]


async def moved(store: RedisStateStore) -> None:
    """Wait until PostgreSQL has all."""
    events = durable(store)

    async def empty() -> bool:
        await events.flush()
        return (await events.backlog()).traces == 0

    await eventually(empty, "PostgreSQL has all events", timeout_s=60)


@pytest.fixture
def own() -> Iterator[OwnPostgres]:
    """Start a PostgreSQL of the test's own."""
    server = OwnPostgres()
    server.start()
    yield server
    server.close()


class Death:
    """Count round trips; the n-th is where a server dies."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0

    def reached(self) -> bool:
        self.seen += 1
        return self.seen == self.at

    @property
    def fired(self) -> bool:
        return self.seen >= self.at


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stride", sizes(7, 1))
async def test_postgresql_dies_at_each_round_trip(
    settings: Settings,
    own: OwnPostgres,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    stride: int,
    *,
    record_property: Recorder,
) -> None:
    wait = psycopg.AsyncConnection.wait
    at, deaths = 1 + stride // 2, 0
    while True:
        death = Death(at)
        named = chosen(
            settings, own, mode, namespace=f"{settings.namespace}-p{at}", call_timeout_s=30.0
        )

        async def watched(connection: Any, *arguments: Any, **options: Any) -> Any:
            if not death.reached():  # noqa: B023 - of this turn
                return await wait(connection, *arguments, **options)
            after = death.at % 2  # noqa: B023
            found = await wait(connection, *arguments, **options) if after else None
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
            return found if after else await wait(connection, *arguments, **options)

        monkeypatch.setattr(psycopg.AsyncConnection, "wait", watched)
        async with RedisStateStore(named) as store:
            for n in range(3):
                await store.save_event(event(n))
            await store.save_event(event(1))
            await moved(store)
            monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
            await moved(store)
            assert await store.load_history("trace") == [event(n) for n in range(3)]
        assert rows_of(own, named) == ["n0", "n1", "n2"]
        if not death.fired:
            break
        deaths += 1
        at += stride
    record_property(DEATHS, deaths)
    assert deaths >= 1


@pytest.fixture
async def redis() -> AsyncIterator[OwnServer]:
    """Start a Redis of the test's own that writes each change to its file before it answers."""
    with short_directory() as directory:
        server = OwnServer(directory, "--appendonly", "yes", "--appendfsync", "always")
        await server.start()
        yield server
        await server.stop()


@pytest.mark.parametrize("stride", sizes(23, 1))
async def test_redis_dies_at_each_round_trip(
    redis: OwnServer,
    settings: Settings,
    postgres: OwnPostgres,
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    *,
    record_property: Recorder,
) -> None:
    run = CallSender.run
    at, deaths = 1 + stride // 2, 0
    while True:
        death = Death(at)
        own = {"url": SecretStr(redis.url), "namespace": f"{settings.namespace}-r{at}"}
        named = chosen(settings, postgres, "delayed", **own, call_timeout_s=30.0)
        again: list[asyncio.Task[None]] = []

        def watched(sender: CallSender, *arguments: Any, **options: Any) -> asyncio.Future[Any]:
            future = run(sender, *arguments, **options)
            if death.reached():  # noqa: B023 - of this turn
                again.append(asyncio.create_task(_restart(redis)))  # noqa: B023
            return future

        async with RedisStateStore(named) as store:
            monkeypatch.setattr(CallSender, "run", watched)
            for n in range(3):
                await store.save_event(event(n))
            await durable(store).flush()
            monkeypatch.setattr(CallSender, "run", run)
            await asyncio.gather(*again)
            await moved(store)
            assert await store.load_history("trace") == [event(n) for n in range(3)]
        assert rows_of(postgres, named) == ["n0", "n1", "n2"]
        if not death.fired:
            break
        deaths += 1
        at += stride
    record_property(DEATHS, deaths)
    assert deaths >= 1


async def _restart(server: OwnServer) -> None:
    await server.stop()
    await server.start()


CHILD = """
import asyncio, os, signal, sys
from redis_state import RedisStateStore
from redis_state.models import StoredEvent
from redis_state.postgres.connection import cut
async def main():
    options = {"durable_events": sys.argv[3], "durable_events_mode": "delayed",
               "durable_events_delay": 3600}
    store = RedisStateStore.from_url(sys.argv[1], namespace=sys.argv[2], **options)
    for n in range(20):
        event = StoredEvent("trace", float(n // 3), "node_start", f"n{n}", None, {"n": n})
        await store.save_event(event)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_what_a_killed_process_saved_is_moved_by_another(
    settings: Settings, postgres: OwnPostgres
) -> None:
    words = [settings.url.get_secret_value(), settings.namespace, postgres.url]
    ran = await asyncio.to_thread(children.run, [sys.executable, "-c", CHILD, *words])
    assert ran.returncode == -signal.SIGKILL
    async with RedisStateStore(chosen(settings, postgres, "delayed")) as store:
        assert await store.load_history("trace") == [event(n) for n in range(20)]
        assert rows_of(postgres, settings) == []
        backlog = await durable(store).backlog()
        assert backlog.traces == 1
        # As a save of any process does.
        await store.save_event(event(20))
        await moved(store)
        assert await store.load_history("trace") == [event(n) for n in range(21)]
    assert rows_of(postgres, settings) == [f"n{n}" for n in range(21)]


async def test_a_trace_that_is_saved_to_while_it_is_moved_counts_as_waiting(
    settings: Settings, postgres: OwnPostgres
) -> None:
    # Nothing is due by itself.
    rare = chosen(settings, postgres, "delayed", durable_events_delay=timedelta(minutes=10))
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        RedisStateStore(rare) as store,
        RedisStateStore(rare.model_copy(update={"url": SecretStr(proxy.url)})) as mover,
    ):
        await store.save_event(event(0))
        await durable(store)._list.begin("trace", delay_ms=0)
        # Its events are read and written, and are struck off next.
        save = partial(store.save_event, event(1))
        with proxy.meanwhile("run_once", save, holding="ZREM"):
            assert (await durable(mover).forward()).events == 1
        assert rows_of(postgres, settings) == ["n0"]
        backlog = await durable(store).backlog()
        assert backlog.traces == 1
        await moved(store)
        assert rows_of(postgres, settings) == ["n0", "n1"]


async def test_events_wait_in_redis_while_postgresql_is_away(
    settings: Settings, own: OwnPostgres
) -> None:
    async with RedisStateStore(chosen(settings, own, "delayed")) as store:
        await store.save_event(event(0))
        await moved(store)
        own.kill()
        for n in range(1, 200):
            await store.save_event(event(n))
        report = await durable(store).forward()
        rows = store.base.keys.events("trace").rows
        # In days: long after `events_ttl`.
        assert await store.transport.commands.pttl(rows) > 399 * 86_400_000
        assert (await durable(store).backlog()).traces == 1
        with pytest.raises(BackendUnavailable):
            await store.load_history("trace")
        await asyncio.to_thread(own.start)
        await moved(store)
        assert await store.load_history("trace") == [event(n) for n in range(200)]
        assert 0 < await store.transport.commands.pttl(rows) <= 30 * 86_400_000
        assert report.missed == durable(store).counts["missed"] == 0
    assert rows_of(own, settings) == [f"n{n}" for n in range(200)]


async def test_a_save_without_its_entry_on_the_list_has_an_unknown_outcome(
    settings: Settings, postgres: OwnPostgres
) -> None:
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        RedisStateStore(chosen(settings, postgres, "delayed", url=SecretStr(proxy.url))) as store,
    ):
        # As a cluster's primary that has the entry's slot, while another has the log.
        with proxy.answer("watch_since", times=None), pytest.raises(OutcomeUnknown):
            await store.save_event(event(0))
        assert await store.load_history("trace") == [event(0)]
        await store.save_event(event(0))
        await moved(store)
    assert rows_of(postgres, settings) == ["n0"]


async def test_a_history_of_large_events_is_read_a_piece_at_a_time(
    settings: Settings, postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [StoredEvent("trace", 1.0, "k", f"n{n}", None, {"x": "x" * 900_000}) for n in range(12)]
    pages: list[int] = []
    read = EventTable.read

    async def watched(*arguments: Any) -> tuple[list[Row], bool]:
        page = await read(*arguments)
        pages.append(sum(len(row.data) for row in page[0]))
        return page

    async with RedisStateStore(chosen(settings, postgres, "sync", call_timeout_s=30.0)) as store:
        for start in range(0, len(large), 6):
            await store.save_events(large[start : start + 6])
        monkeypatch.setattr(EventTable, "read", watched)
        assert await store.load_history("trace") == large
    assert len(pages) > 1
    assert max(pages) < 10_000_000


@pytest.mark.parametrize("word", ["silent", "refused"])
async def test_a_save_without_an_answer_is_an_error_of_its_kind_and_can_be_repeated(
    settings: Settings, own: OwnPostgres, word: str
) -> None:
    async with RedisStateStore(chosen(settings, own, "sync", call_timeout_s=2.0)) as store:
        await store.save_event(event(0))
        if word == "silent":
            own.signal(signal.SIGSTOP)
        else:
            own.kill()
        with pytest.raises(BackendUnavailable) as caught:
            await store.save_event(event(1))
        # It was sent to the first; the connection of the second was lost before.
        assert isinstance(caught.value, OutcomeUnknown)
        assert str(own.folder) in str(caught.value)
        if word == "silent":
            own.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(own.start)
        await store.save_event(event(1))
        await store.save_event(event(2))
        assert await store.load_history("trace") == [event(n) for n in range(3)]
    assert rows_of(own, settings) == ["n0", "n1", "n2"]


async def test_a_restored_postgresql_gets_again_what_redis_still_has(
    settings: Settings, own: OwnPostgres
) -> None:
    async with RedisStateStore(chosen(settings, own, "delayed")) as store:
        for n in range(5):
            await store.save_event(event(n))
        await moved(store)
        own.kill()
        shutil.copytree(own.folder / "data", own.folder / "backup", symlinks=True)
        owner = (own.folder / "data").stat()
        await asyncio.to_thread(own.start)
        for n in range(5, 9):
            await store.save_event(event(n))
        await moved(store)
        own.kill()
        shutil.rmtree(own.folder / "data")
        (own.folder / "backup").rename(own.folder / "data")
        for path in [own.folder / "data", *(own.folder / "data").rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        await asyncio.to_thread(own.start)
        # No reader misses any of it, and it is moved again at the trace's next look.
        assert await store.load_history("trace") == [event(n) for n in range(9)]
        assert len(rows_of(own, settings)) == 5
        await store.save_event(event(9))
        await moved(store)
        assert await store.load_history("trace") == [event(n) for n in range(10)]
    assert rows_of(own, settings) == [f"n{n}" for n in range(10)]


async def test_a_redis_that_went_back_loses_nothing_that_was_moved(
    redis: OwnServer, settings: Settings, postgres: OwnPostgres
) -> None:
    named = chosen(settings, postgres, "delayed", url=SecretStr(redis.url))
    async with RedisStateStore(named) as store:
        for n in range(5):
            await store.save_event(event(n))
        await moved(store)
        # The keys of the trace are gone, as in a backup of before.
        keys = store.base.keys.events("trace")
        await store.base.scripts.delete(keys.rows)
        await store.base.scripts.delete(keys.ids)
        assert await store.load_history("trace") == [event(n) for n in range(5)]
        for n in (3, 5, 6):
            await store.save_event(event(n))
        assert await store.load_history("trace") == [event(n) for n in range(7)]
        await moved(store)
        assert await store.load_history("trace") == [event(n) for n in range(7)]
    assert rows_of(postgres, named) == [f"n{n}" for n in range(7)]


async def test_events_and_the_archive_go_over_tls_to_a_server_that_is_checked(
    settings: Settings,
) -> None:
    own = OwnPostgres()
    try:
        cert = own.use_tls()
        own.start()
        plain = f"postgresql://postgres:s3cret@127.0.0.1:{own.port}/postgres"
        checked = f"{plain}?sslmode=verify-full&sslrootcert={cert}"
        over = settings.model_copy(update={"durable_events": SecretStr(checked)})
        async with RedisStateStore(over) as store:
            await store.save_event(event(0))
            assert await store.load_history("trace") == [event(0)]
        # Another name than the certificate's is refused, and nothing is said of the login.
        other = checked.replace("127.0.0.1:", "localhost:")
        over = settings.model_copy(
            update={"durable_events": SecretStr(other), "call_timeout_s": 10.0}
        )
        async with RedisStateStore(over) as store:
            with pytest.raises(BackendUnavailable) as caught:
                await store.save_event(event(1))
            assert caught.value.final
            assert "s3cret" not in str(caught.value)
            assert "s3cret" not in repr(store.settings)
        await _archives_over_tls(checked, other)
    finally:
        own.close()


async def _archives_over_tls(checked: str, other: str) -> None:
    archive = PostgresArchive(checked, namespace="n")
    await archive.prepare()
    batch = ArchiveBatch([sample_task("s", "t", 3)])
    await archive.write(batch)
    assert (await archive.verify(batch)).is_whole
    with psycopg.connect(checked) as beside:
        found = beside.execute(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE backend_type = 'client backend'"
        ).fetchone()
        assert found == (True,)
    await archive.aclose()
    archive = PostgresArchive(other, namespace="n", timeout_s=10.0)
    with pytest.raises(ArchiveUnavailable) as refused:
        await archive.prepare()
    assert "s3cret" not in str(refused.value)
    assert "does not match host name" in str(refused.value)
    await archive.aclose()


async def test_a_refusal_after_a_lost_commit_does_not_say_that_nothing_was_written(
    settings: Settings, own: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, allowed = EventTable.insert, own.folder / "data" / "pg_hba.conf"
    tries: list[int] = []

    async def cut_off(*arguments: Any) -> Any:
        tries.append(1)
        await insert(*arguments)
        # It is committed. Before it is asked again, the server takes nobody any more.
        allowed.write_text("host all all 192.0.2.1/32 trust\n")
        own.signal(signal.SIGHUP)
        cut(arguments[-1])
        return await insert(*arguments)

    async with RedisStateStore(chosen(settings, own, "sync")) as store:
        await store.save_event(event(0))
        with psycopg.connect(own.url, autocommit=True) as beside, monkeypatch.context() as patch:
            patch.setattr(EventTable, "insert", cut_off)
            with pytest.raises(BackendUnavailable) as caught:
                await store.save_event(event(1))
            assert len(tries) == 1
            found = beside.execute("SELECT count(*) FROM redis_state_events.events").fetchone()
            assert found == (2,)
        assert isinstance(caught.value, OutcomeUnknown)


async def test_an_outage_of_postgresql_does_not_fill_the_memory_with_names_of_traces(
    settings: Settings, own: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_store, "_MOST_OWN", 3)
    async with RedisStateStore(chosen(settings, own, "delayed")) as store:
        events = durable(store)
        await events.prepare()
        own.kill()
        known: list[int] = []
        for n in range(9):
            await store.save_event(event(n, f"t{n}"))
            known.append(len(events._of_this_loop().own))
        assert max(known) == 3
        await eventually(lambda: events.counts["postponed"], "PostgreSQL is found to be away")
        own.start()
        await moved(store)
    assert sorted(rows_of(own, settings)) == [f"n{n}" for n in range(9)]
