"""A `replicated` store under load: over TLS, behind Sentinels, on a cluster that moves slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from redis_state import RedisStateStore
from redis_state.errors import OutcomeUnknown
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import SLOTS, slot_of
from redis_state.transport.keys import Keys
from redis_state.transport.sending.guarantee import PLACELESS_S
from tests.support.samples import update as make_update
from tests.support.servers.changes.rollback import Replicas
from tests.support.servers.faults import (
    Proxy,
    certificate,
    tls_server_context,
)
from tests.support.servers.sets.clusters import Cluster, running_cluster
from tests.support.servers.sets.guarantees import (
    SHORT_S,
    WRITERS,
    commands,
    late,
    settings_of,
)
from tests.support.servers.sets.load import load
from tests.support.servers.sets.sentinels import running_sentinels
from tests.support.timing import LONG_S


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
