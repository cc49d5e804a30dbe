"""Guarantees that can be chosen: what a caller was answered is where the class says that it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable, ConfigError, LeaseLost, OutcomeUnknown
from redis_state.primitives.lease import Leases
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import SLOTS, slot_of
from redis_state.transport.keys import Keys
from redis_state.transport.sending.guarantee import PLACELESS_S
from redis_state.transport.sending.sender import Sender
from tests.support.samples import update as make_update
from tests.support.scripts.replies import HOUR
from tests.support.servers.clusters import Cluster, running_cluster
from tests.support.servers.faults import (
    Proxy,
    certificate,
    run_server,
    sender_to,
    short_directory,
    tls_server_context,
)
from tests.support.servers.load import Load, load
from tests.support.servers.rollback import OwnServer, Replicas, replicas
from tests.support.servers.sentinels import running_sentinels
from tests.support.timing import LONG_S

WRITERS = 24
SHORT_S = 1.5


@pytest.fixture
async def lagging(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Replicas]:
    async with replicas((unused_tcp_port_factory(), unused_tcp_port_factory())) as made:
        yield made


def settings_of(url: str, **options: Any) -> Settings:
    return make_settings(url, namespace="safe", guarantee="replicated", **options)


def late() -> asyncio.Future[None]:
    """Give a moment at which a replica would have confirmed long ago."""
    return asyncio.ensure_future(asyncio.sleep(0.4))


async def commands(store: RedisStateStore, name: str) -> int:
    """Count the calls of a command that the server has seen."""
    stated: bytes = await store.transport.sender.send("INFO", "commandstats", repeatable=True)
    return counted(stated, name)


def counted(stated: bytes, name: str) -> int:
    """Read how often a command was called from what a server says of its commands."""
    lines = dict(line.split(":", 1) for line in stated.decode().splitlines() if ":" in line)
    fields = lines.get(f"cmdstat_{name}", "calls=0").split(",")
    return int(fields[0].removeprefix("calls="))


@pytest.mark.server
async def test_nothing_that_was_acknowledged_is_lost_with_a_primary_whose_replica_lagged(
    lagging: Replicas,
) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=20.0)) as store:
        writers = load(store, writers=WRITERS, watching=False)
        async with writers.running():
            for kill in (False, True):
                await lagging.mark()
                await stuck(writers)
                await lagging.go_back(kill=kill)
                await writers.more()


async def stuck(writers: Load) -> None:
    """Wait until no caller is answered any more: the replica hears nothing."""

    async def still() -> bool:
        before = sum(map(len, writers.acknowledged.values()))
        await late()
        return sum(map(len, writers.acknowledged.values())) == before

    await eventually(still, "all callers wait", timeout_s=LONG_S)
    assert writers.store.transport.sender.pending == WRITERS


@pytest.mark.server
async def test_the_fast_class_loses_acknowledged_writes_in_the_same_trial(
    lagging: Replicas,
) -> None:
    """Else the test above would show nothing."""
    settings = make_settings(lagging.url, namespace="safe")
    async with RedisStateStore(settings) as store:
        await lagging.mark()
        for number in range(10):
            await store.save_update(make_update(f"u{number}"))
        await lagging.go_back()
        assert (await store.read_updates("session")).values == []


@pytest.mark.server
async def test_a_write_that_no_replica_confirms_ends_as_unknown_and_can_be_repeated(
    lagging: Replicas,
) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=SHORT_S)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas have confirmed it"):
            await store.save_update(make_update("u"))
        # Reads need no replica, and do not wait behind what nobody waits for any more.
        assert len((await store.read_updates("session")).values) == 2
        lagging.hear()
        await store.save_update(make_update("u"))
        kept = (await store.read_updates("session")).values
        assert [update.update_id for update in kept] == ["before", "u"]


@pytest.mark.server
async def test_reads_do_not_wait_for_writes_that_no_replica_has_confirmed(
    lagging: Replicas,
) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=LONG_S)) as store:
        for key in ("a", "b", "c"):
            await store.save_memory_state(key, {"n": 1})
        await lagging.mark()
        first = asyncio.ensure_future(store.save_memory_state("a", {"n": 2}))
        await late()
        # It is not sent before the first is confirmed. What reads its key comes after it.
        second = asyncio.ensure_future(store.save_memory_state("b", {"n": 2}))
        behind = asyncio.ensure_future(store.load_memory_state("b"))
        for _ in range(5):
            assert await store.load_memory_state("c") == {"n": 1}
            assert await store.load_memory_state("a") == {"n": 2}
        assert [call.done() for call in (first, second, behind)] == [False] * 3
        lagging.hear()
        await asyncio.gather(first, second)
        assert await behind == {"n": 2}


@pytest.mark.server
async def test_a_replica_that_is_away_for_less_than_the_deadline_costs_no_error(
    lagging: Replicas,
) -> None:
    async with RedisStateStore(settings_of(lagging.url)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        waiting = [
            asyncio.ensure_future(store.save_update(make_update(f"u{number}")))
            for number in range(100)
        ]
        await late()
        assert not any(call.done() for call in waiting)
        lagging.hear()
        await asyncio.gather(*waiting)
        kept = (await store.read_updates("session")).values
        assert [update.update_id for update in kept] == [
            "before",
            *(f"u{number}" for number in range(100)),
        ]


@pytest.mark.server
async def test_a_repeated_call_that_writes_nothing_waits_for_the_replica_too(
    lagging: Replicas,
) -> None:
    """Some servers count the replicas that have the connection's own last write: it has none."""
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=LONG_S)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        call = asyncio.ensure_future(store.save_update(make_update("u")))
        async with sender_to(lagging.primary_url) as beside:
            rows = Keys("safe").updates("session").rows

            async def executed() -> bool:
                return bool(await beside.send("XLEN", rows, repeatable=True) == 2)

            await eventually(executed, "the server has executed it")
        # Its reply is kept: the call is made again, on a connection that has written nothing.
        assert lagging.name.cut()
        await eventually(lambda: store.transport.sender.connections == 2, "it is connected again")
        await late()
        assert not call.done()
        lagging.hear()
        await call
        assert len((await store.read_updates("session")).values) == 2


@pytest.mark.server
async def test_a_primary_that_was_a_replica_while_the_client_stood_still_confirms_nothing(
    lagging: Replicas,
) -> None:
    """It has lost the write, keeps the connection, and counts by places in another history."""
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=LONG_S)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        waits = await commands(store, "wait")
        call = asyncio.ensure_future(store.save_update(make_update("u")))
        async with sender_to(lagging.primary_url) as beside:

            async def waited() -> bool:
                stated: bytes = await beside.send("INFO", "commandstats", repeatable=True)
                return counted(stated, "wait") >= waits + 2

            await eventually(waited, "it was asked twice whether the replica has it")
        # In the loop's own thread: nothing is read or sent meanwhile.
        lagging.go_back_and_return()
        await call
        kept = (await store.read_updates("session")).values
        assert [update.update_id for update in kept] == ["before", "u"]


@pytest.mark.server
async def test_one_confirmation_serves_all_that_is_called_meanwhile(lagging: Replicas) -> None:
    async with RedisStateStore(settings_of(lagging.url)) as store:
        await store.save_update(make_update("first"))
        before = await commands(store, "wait")
        for turn in range(5):
            await asyncio.gather(
                *(store.save_update(make_update(f"{turn}-{number}")) for number in range(200))
            )
        # One at the beginning of each turn may leave alone.
        assert await commands(store, "wait") - before <= 2 * 5
        # Reads have none.
        before = await commands(store, "wait")
        await asyncio.gather(*(store.read_updates("session") for _ in range(20)))
        assert await commands(store, "wait") == before


@pytest.mark.server
async def test_a_cancelled_caller_holds_nobody_up(lagging: Replicas) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=SHORT_S)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        call = asyncio.ensure_future(store.save_memory_state("key", {"n": 1}))
        await late()
        call.cancel()
        assert await store.load_memory_state("key") == {"n": 1}
        lagging.hear()
        await store.save_memory_state("key", {"n": 2})


@pytest.mark.server
async def test_a_full_server_confirms_what_it_still_takes(lagging: Replicas) -> None:
    async with RedisStateStore(settings_of(lagging.url)) as store:
        await store.save_memory_state("key", {"n": 1})
        async with sender_to(lagging.primary_url) as beside:
            await beside.send("CONFIG", "SET", "maxmemory", 1, repeatable=True)
            await store.transport.sender.send("UNLINK", "other", repeatable=True)
            await store.transport.drain()


@pytest.mark.server
async def test_40_callers_over_tls_survive_a_lagging_replica(
    lagging: Replicas, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with Proxy(lagging.primary_url, tls=tls_server_context(cert, key)) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        async with RedisStateStore(settings_of(url, call_timeout_s=LONG_S)) as store:

            async def write_and_read(number: int) -> None:
                for turn in range(5):
                    value = {"caller": number, "turn": turn, "pad": "x" * (70_000 * (turn % 2))}
                    await store.save_memory_state(f"user{number}", value)
                    assert await store.load_memory_state(f"user{number}") == value

            await asyncio.gather(*map(write_and_read, range(40)))
            await lagging.mark()
            again = asyncio.gather(*map(write_and_read, range(40)))
            await late()
            assert not again.done()
            assert proxy.cut()
            lagging.hear()
            await again


@pytest.mark.server
async def test_a_dead_link_to_a_primary_that_was_asked_to_confirm_is_left(
    lagging: Replicas,
) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=6.0)) as store:
        await store.save_update(make_update("before"))
        await lagging.mark()
        call = asyncio.ensure_future(store.save_update(make_update("u")))
        await late()
        assert lagging.name.half_open()
        lagging.hear()
        await call
        assert store.transport.sender.connections == 2


@pytest.mark.server
async def test_a_planned_failover_of_sentinels_loses_nothing(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    async with (
        running_sentinels(unused_tcp_port_factory) as sentinels,
        # All replicas: one that still follows the old primary confirms what will be lost.
        RedisStateStore(
            settings_of(sentinels.url, guarantee_replicas=2, call_timeout_s=20.0)
        ) as store,
        load(store, writers=WRITERS, watching=False).running() as writers,
    ):
        old = await sentinels.primary()
        await sentinels.failover()
        await sentinels.moved_from(old)
        await writers.more()


@pytest.fixture
async def cluster() -> AsyncGenerator[Cluster]:
    async with running_cluster(replicas=1) as made:
        yield made


@pytest.mark.server
@pytest.mark.timeout(300)
async def test_nothing_is_lost_on_a_cluster_whose_primary_dies_while_slots_move(
    cluster: Cluster,
) -> None:
    async with (
        RedisStateStore(settings_of(cluster.url, call_timeout_s=30.0)) as store,
        load(store, writers=WRITERS, watching=False).running() as writers,
    ):
        # The marks are in some of these slots.
        await cluster.move(range(0, 5461, 40), cluster.ports[1])
        await writers.more()
        for port in (cluster.ports[0], cluster.ports[2]):
            cluster.kill(port)
            await cluster.failed_over(port)
            # The new primary has no replica before this one is back.
            cluster.start_node(port)
            await writers.more()


@pytest.mark.server
async def test_calls_that_are_sent_on_to_a_node_without_slots_are_confirmed_there() -> None:
    # Without slots it would become a replica.
    stays = ("--cluster-allow-replica-migration", "no")
    async with running_cluster(*stays, primaries=4, replicas=1) as cluster:
        if not await cluster.migrates_slots():
            pytest.skip("emptying a node slot by slot takes minutes; MIGRATESLOTS is of Valkey 9")
        empty, *others = cluster.ports[:4]
        await cluster.migrate(0, 16383 // 4 + 1, others[0])
        assert empty not in await cluster.primaries()
        async with (
            RedisStateStore(settings_of(cluster.url, call_timeout_s=30.0)) as store,
            load(store, writers=3, watching=False).running() as writers,
        ):
            slot = slot_of(Keys("safe").updates(writers.sessions[0]).rows)
            source = await cluster.begin_move(slot, empty)
            await cluster.move_keys(slot, source, empty)
            await writers.more()
            await cluster.end_move(slot, empty)
            await writers.more()


@pytest.mark.server
async def test_a_node_whose_only_slot_is_being_moved_is_asked_to_confirm_now_and_then() -> None:
    """It has the keys of the call, and no place for a mark."""
    stays = ("--cluster-allow-replica-migration", "no")
    async with running_cluster(*stays, primaries=3, replicas=1) as cluster:
        if not await cluster.migrates_slots():
            pytest.skip("emptying a node slot by slot takes minutes; MIGRATESLOTS is of Valkey 9")
        # The only slot of the first node.
        first, target = cluster.ports[:2]
        session = next(
            name
            for name in (f"s{number}" for number in range(10**6))
            if slot_of(Keys("safe").updates(name).rows) == 0
        )
        await cluster.migrate(1, 5461, target)
        async with RedisStateStore(settings_of(cluster.url, call_timeout_s=SHORT_S)) as store:

            async def save(name: str) -> None:
                await store.save_update(make_update(name, session_id=session))

            for name in ("u0", "u1"):
                await save(name)
            await cluster.begin_move(0, target)

            async def mark_is_gone() -> bool:
                keys: list[str] = await cluster.ask(first, "KEYS", "safe:mark:*")
                return keys == []

            await eventually(mark_is_gone, "a mark would have to be made again")
            tried = slot_of.cache_info().misses
            with pytest.raises(OutcomeUnknown, match="0 of 1 replicas have confirmed it"):
                await save("u2")
            stated: str = await cluster.ask(first, "INFO", "errorstats")
            # No key is looked for in a slot that the node has not.
            assert slot_of.cache_info().misses - tried < SLOTS
            asked = int(stated.partition("errorstat_ASK:count=")[2].split()[0])
            # As often as there is a moment for it, and not at once again.
            assert 1 <= asked <= 2 * SHORT_S / PLACELESS_S
            await cluster.ask(first, "CLUSTER", "SETSLOT", 0, "STABLE")
            await save("u2")
            kept = (await store.read_updates(session)).values
            assert [update.update_id for update in kept] == ["u0", "u1", "u2"]


@pytest.mark.server
async def test_a_replica_is_not_the_one_to_ask_and_no_wrong_setting(lagging: Replicas) -> None:
    """It was the primary when it was looked up, or is about to be."""
    async with RedisStateStore(settings_of(lagging.replica_url, call_timeout_s=0.5)) as store:
        with pytest.raises(BackendUnavailable, match="the server is a replica"):
            await store.save_update(make_update("u"))
    async with RedisStateStore(settings_of(lagging.replica_url, call_timeout_s=20.0)) as store:
        call = asyncio.ensure_future(store.save_update(make_update("u")))
        await late()
        assert not call.done()
        await lagging.switch()
        await call


@asynccontextmanager
async def server(*options: str) -> AsyncGenerator[str]:
    with short_directory() as directory, run_server(directory, *options) as url:
        async with sender_to(url) as sender:
            await sender.send("PING", repeatable=True)
        yield url


ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.server
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ((), "appendonly is 'no', not 'yes'"),
        (("--appendonly", "yes"), "appendfsync is 'everysec', not 'always'"),
        ((*ALWAYS, "--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite is 'yes'"),
    ],
    ids=["no file", "everysec", "not while it is rewritten"],
)
async def test_a_server_that_cannot_promise_durability_is_refused_at_once(
    options: tuple[str, ...], wrong: str
) -> None:
    async with server(*options) as url:
        async with RedisStateStore(make_settings(url, guarantee="durable")) as store:
            for _ in range(2):
                with pytest.raises(ConfigError, match=wrong):
                    await store.save_update(make_update("u"))
        async with RedisStateStore(make_settings(url)) as store:
            assert (await store.read_updates("session")).values == []


@pytest.mark.server
async def test_a_server_that_syncs_before_it_answers_is_durable() -> None:
    async with (
        server(*ALWAYS) as url,
        RedisStateStore(make_settings(url, guarantee="durable")) as store,
    ):
        await store.save_update(make_update("u"))
        assert await commands(store, "wait") == 0


@pytest.mark.server
async def test_a_lease_is_renewed_as_soon_as_the_server_promises_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server may be configured anew, or another one take over whose settings are mended later."""
    async with (
        server(*ALWAYS) as url,
        RedisStateStore(make_settings(url, guarantee="durable")) as store,
        sender_to(url) as admin,
    ):
        lease = store.base.keys.lease("s", "t")
        leases, lost = Leases(store.base.scripts, keep_ms=HOUR), list[LeaseLost]()
        held = await leases.acquire(lease, duration_ms=HOUR)
        assert held is not None
        with leases.keep(held, duration_ms=300, on_lost=lost.append):
            await admin.send("CONFIG", "SET", "appendfsync", "everysec", repeatable=True)
            await admin.send("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", repeatable=True)
            await eventually(
                lambda: "could not be renewed: this server cannot promise" in caplog.text,
                "the server is refused",
            )
            await admin.send("HSET", lease, "expires", 0, repeatable=True)
            await admin.send("CONFIG", "SET", "appendfsync", "always", repeatable=True)

            async def renewed() -> bool:
                return bool(await admin.send("HGET", lease, "expires", repeatable=True) != b"0")

            await eventually(renewed, "the lease is renewed")
        assert not lost


@pytest.mark.server
async def test_a_server_without_its_first_file_is_waited_for() -> None:
    # As a replica that was just promoted: what it writes meanwhile, a restart would not read.
    async with (
        server("--appendonly", "no", "--appendfsync", "always") as url,
        RedisStateStore(make_settings(url)) as store,
        sender_to(url) as admin,
    ):
        await asyncio.gather(*(store.save_memory_state(f"k{n}", {}) for n in range(40)))
        for setting in (("rdb-key-save-delay", 50_000), ("appendonly", "yes")):
            await admin.send("CONFIG", "SET", *setting, repeatable=True)
        durable = make_settings(url, guarantee="durable", call_timeout_s=0.5)
        async with RedisStateStore(durable) as early:
            with pytest.raises(BackendUnavailable, match="has not written its first file yet"):
                await early.save_update(make_update("u0"))
            assert await is_rewriting(admin)
        patient = make_settings(url, guarantee="durable", call_timeout_s=LONG_S)
        async with RedisStateStore(patient) as later:
            await later.save_update(make_update("u1"))
            assert not await is_rewriting(admin)


@pytest.mark.server
async def test_a_promoted_replica_with_an_older_file_is_waited_for(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    """What it writes meanwhile, a restart would not read: it has the file of before it followed."""
    ports = unused_tcp_port_factory(), unused_tcp_port_factory()
    # It reads what it follows from the socket: there is no file of it.
    options = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0", *ALWAYS)
    with short_directory() as one, short_directory() as other:
        primary = OwnServer(one, "--port", str(ports[0]), *options)
        replica = OwnServer(
            other, "--port", str(ports[1]), *options, "--repl-diskless-load", "swapdb"
        )
        try:
            await asyncio.gather(primary.start(), replica.start())
            async with RedisStateStore(make_settings(primary.url)) as store:
                await asyncio.gather(*(store.save_memory_state(f"k{n}", {}) for n in range(40)))
            async with sender_to(replica.url) as admin:
                await admin.send("SET", "old", "x", repeatable=True)
                await admin.send("BGREWRITEAOF", repeatable=True)
                await eventually(lambda: has_a_file(admin), "it has a file")
                await admin.send("CONFIG", "SET", "rdb-key-save-delay", 50_000, repeatable=True)
                await admin.send("REPLICAOF", "127.0.0.1", ports[0], repeatable=True)
                await eventually(lambda: follows(admin), "it follows")
                await admin.send("REPLICAOF", "NO", "ONE", repeatable=True)
                durable = make_settings(replica.url, guarantee="durable", call_timeout_s=0.5)
                async with RedisStateStore(durable) as early:
                    with pytest.raises(BackendUnavailable, match="not written its first file yet"):
                        await early.save_memory_state("early", {})
                    assert await is_rewriting(admin)
                patient = make_settings(replica.url, guarantee="durable", call_timeout_s=LONG_S)
                async with RedisStateStore(patient) as store:
                    await store.save_memory_state("promoted", {"n": 1})
            await replica.stop()
            await replica.start()
            async with RedisStateStore(make_settings(replica.url)) as store:
                assert await store.load_memory_state("promoted") == {"n": 1}
        finally:
            await asyncio.gather(primary.stop(), replica.stop())


@pytest.mark.server
async def test_a_server_that_rewrites_its_file_is_not_waited_for() -> None:
    async with (
        server(*ALWAYS) as url,
        RedisStateStore(make_settings(url)) as store,
        sender_to(url) as admin,
    ):
        await asyncio.gather(*(store.save_memory_state(f"k{n}", {}) for n in range(40)))
        await admin.send("BGREWRITEAOF", repeatable=True)
        await eventually(lambda: has_a_file(admin), "it has a file")
        for command in (("CONFIG", "SET", "rdb-key-save-delay", 200_000), ("BGREWRITEAOF",)):
            await admin.send(*command, repeatable=True)
        await eventually(lambda: is_rewriting(admin), "it writes its file")
        durable = make_settings(url, guarantee="durable", call_timeout_s=LONG_S)
        async with RedisStateStore(durable) as meanwhile:
            await meanwhile.save_memory_state("k", {"n": 1})
            assert await is_rewriting(admin)


async def has_a_file(admin: Sender) -> bool:
    info: bytes = await admin.send("INFO", "persistence", repeatable=True)
    return b"aof_base_size:0" not in info and not await is_rewriting(admin)


async def follows(admin: Sender) -> bool:
    info: bytes = await admin.send("INFO", "replication", repeatable=True)
    return b"master_link_status:up" in info and await is_rewriting(admin)


async def is_rewriting(admin: Sender) -> bool:
    return b"aof_rewrite_in_progress:1" in await admin.send("INFO", "persistence", repeatable=True)


@pytest.mark.server
async def test_a_server_that_does_not_say_is_believed_only_on_demand() -> None:
    async with server(*ALWAYS) as url:
        async with sender_to(url) as admin:
            rule = ("on", ">secret", "~*", "&*", "+@all", "-config")
            await admin.send("ACL", "SETUSER", "tenant", *rule, repeatable=True)
        named = url.replace("unix://", "unix://tenant:secret@")
        async with RedisStateStore(make_settings(named, guarantee="durable")) as store:
            with pytest.raises(ConfigError, match="set durable_trusted if you know") as refused:
                await store.save_update(make_update("u"))
            assert "secret" not in str(refused.value)
        trusting = make_settings(named, guarantee="durable", durable_trusted=True)
        async with RedisStateStore(trusting) as store:
            await store.save_update(make_update("u"))


@pytest.mark.server
async def test_a_user_without_the_right_to_wait_is_told_when_he_connects() -> None:
    async with server() as url:
        async with sender_to(url) as admin:
            rule = ("on", ">secret", "~*", "&*", "+@all", "-wait")
            await admin.send("ACL", "SETUSER", "tenant", *rule, repeatable=True)
        named = url.replace("unix://", "unix://tenant:secret@")
        async with RedisStateStore(settings_of(named)) as store:
            with pytest.raises(ConfigError, match=r"cannot confirm its replicas: .*wait"):
                await store.save_update(make_update("u"))


@pytest.mark.server
async def test_a_server_without_replicas_confirms_nothing() -> None:
    async with (
        server() as url,
        RedisStateStore(settings_of(url, call_timeout_s=SHORT_S)) as store,
    ):
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
            await store.save_update(make_update("u"))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"guarantee": "fast", "guarantee_replicas": 1}, "guarantee_replicas needs"),
        ({"guarantee": "replicated", "guarantee_replicas": 0}, "at least one replica"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_given(
    options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        RedisStateStore(make_settings(**options))
