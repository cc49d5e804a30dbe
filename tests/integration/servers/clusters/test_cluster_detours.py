"""Calls on a cluster whose slots are in trouble: each takes effect once, in order, and in time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest
import redis as blocking
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.erasure.walking import KeyWalk
from redis_state.errors import BackendUnavailable
from redis_state.testing import eventually
from redis_state.transport.cluster.node import DENSE
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.cluster.slots import SLOTS, read_slot_map, slot_of
from redis_state.transport.connections.address import Address, Endpoint
from redis_state.transport.sending.batch import Call
from redis_state.transport.transport import Transport
from tests.support.servers.faults import Proxy
from tests.support.servers.sets.clusters import Cluster, running_cluster, tag_in

pytestmark = pytest.mark.server
KEY = "{moved}list"
SLOT = slot_of(KEY)
TWO = ("{moved}1", 1, "{moved}2", 2)
# Takes longer than a detour waits with its next try. Its first braces name the slot.
SLOW = """-- {moved}
redis.call('RPUSH', KEYS[1], ARGV[1])
-- Some 0.4 s. For a script the server's TIME stands still, and not every server has `os`.
local sum = 0
for i = 1, 40000000 do sum = sum + i end
"""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster() as made:
        yield made


@asynccontextmanager
async def sender_of(cluster: Cluster, **options: float) -> AsyncGenerator[ClusterSender]:
    settings = Settings(url=SecretStr(cluster.url)).model_copy(update=options)
    transport = Transport(settings)
    try:
        assert isinstance(transport.sender, ClusterSender)
        yield transport.sender
    finally:
        await transport.aclose()


async def begin_move(cluster: Cluster) -> tuple[int, int]:
    """Begin to move the slot; return the ports of the node that has it and of the other."""
    source = await cluster.owner(SLOT)
    target = next(port for port in cluster.ports if port != source)
    await cluster.begin_move(SLOT, target)
    return source, target


async def refusals(cluster: Cluster, port: int, code: str) -> int:
    """Count what a node has refused in this way."""
    stated: str = await cluster.ask(port, "INFO", "errorstats")
    lines = [line for line in stated.split() if line.startswith(f"errorstat_{code}:")]
    return int(lines[0].partition("count=")[2]) if lines else 0


async def kept(sender: ClusterSender) -> list[bytes]:
    found: list[bytes] = await sender.send("LRANGE", KEY, 0, -1, repeatable=True)
    return found


async def test_a_try_that_is_due_after_the_slot_was_found_sends_no_call_again(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster, call_timeout_s=20.0) as sender:
        wanted: list[str] = []
        # One move may end just when the next try is made: then none is due afterwards.
        for turn in range(4):
            await sender.send("MSET", *TWO, repeatable=True)
            source, target = await begin_move(cluster)
            await cluster.move_keys(SLOT, source, target, most=1)
            tried = await refusals(cluster, source, "TRYAGAIN")
            calls = [sender.send("MGET", TWO[0], TWO[2], KEY, repeatable=True)]

            async def waits(source: int = source, tried: int = tried) -> bool:
                return await refusals(cluster, source, "TRYAGAIN") > tried + 6

            await eventually(waits, "the next try is due in 0.2 s")
            more = f"{turn} slow", f"{turn} behind"
            calls += [
                sender.send("EVAL", SLOW, 1, KEY, more[0], repeatable=False),
                sender.send("RPUSH", KEY, more[1], repeatable=False),
            ]
            await cluster.move_keys(SLOT, source, target)
            await cluster.end_move(SLOT, target)
            # As any other sign of a change does.
            sender.in_trouble()
            await asyncio.gather(*calls)
            wanted += more
        assert await kept(sender) == [each.encode() for each in wanted]


async def test_the_call_that_looks_for_a_slot_leaves_a_killed_node_for_its_replica() -> None:
    async with running_cluster(replicas=1) as cluster:
        cluster.kill(await cluster.owner(SLOT))
        patient = {"call_timeout_s": 30.0, "connect_timeout_s": 30.0}
        async with sender_of(cluster, **patient) as sender:
            # The first map still names the killed node.
            calls = [sender.send("RPUSH", KEY, n, repeatable=False) for n in range(3)]
            assert await asyncio.gather(*calls) == [1, 2, 3]


async def test_a_node_that_has_forgotten_the_cluster_says_nothing_about_its_slots(
    cluster: Cluster,
) -> None:
    address = Address.parse(cluster.url)
    await cluster.ask(cluster.ports[0], "CLUSTER", "RESET", "HARD")
    # Its reply would come first in some of them.
    for _ in range(30):
        found = await read_slot_map(address, address.endpoints, timeout_s=5.0)
        assert max(found.ranges).owner == ("127.0.0.1", cluster.ports[-1])


async def test_a_node_over_a_slow_link_has_the_deadline_of_a_connection(cluster: Cluster) -> None:
    async with Proxy(f"redis://127.0.0.1:{cluster.ports[0]}") as proxy:
        proxy.dribble(16, 0.1)
        seed = Settings(url=SecretStr(f"redis+cluster://127.0.0.1:{proxy.port}"))
        transport = Transport(seed)
        try:
            assert await transport.sender.send("SET", KEY, 1, "PX", 60_000, repeatable=True)
        finally:
            await transport.aclose()


async def test_nodes_that_say_nothing_hold_no_other_up(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        silent: list[Endpoint] = []
        for port in (*cluster.ports, *cluster.ports):
            proxy = await stack.enter_async_context(Proxy(f"redis://127.0.0.1:{port}"))
            proxy.silence()
            silent.append(("127.0.0.1", proxy.port))
        nodes = [*silent, ("127.0.0.1", cluster.ports[0])]
        found = await read_slot_map(Address.parse(cluster.url), nodes, timeout_s=60.0)
    assert {port for _, port in found.primaries} == {*cluster.ports}


async def test_calls_and_followers_wait_while_a_node_has_no_room_for_a_connection() -> None:
    async with running_cluster(primaries=1) as cluster:
        with cast("Any", blocking).Redis(port=cluster.ports[0]) as admin:
            admin.config_set("maxclients", 1)
            transport = Transport(Settings(url=SecretStr(cluster.url)))
            try:
                call = transport.sender.send("SET", KEY, 1, "PX", 60_000, repeatable=True)
                followed = transport.subscriber.subscribe(KEY).next()
                await eventually(
                    lambda: admin.info("stats")["rejected_connections"] > 3, "it is refused"
                )
                assert not any(each.done() for each in (call, followed))
                admin.config_set("maxclients", 1_000)
                assert await call
                assert await followed is None
            finally:
                await transport.aclose()


async def test_a_map_like_the_one_before_is_not_compared_slot_by_slot(cluster: Cluster) -> None:
    async with sender_of(cluster) as sender:
        changed: list[set[int]] = []
        sender.on_slots = changed.append
        await sender.send("SET", KEY, 1, repeatable=True)
        assert [len(slots) for slots in changed] == [SLOTS]

        async def read_again() -> int:
            found = await read_slot_map(sender.address, sender.address.endpoints, timeout_s=5.0)
            return lines_of(partial(sender._apply, found))

        assert await read_again() < SLOTS // 50
        source, target = await begin_move(cluster)
        await cluster.move_keys(SLOT, source, target)
        await cluster.end_move(SLOT, target)

        async def moved() -> bool:
            await read_again()
            return {SLOT} in changed

        await eventually(moved, "the nodes know of the move")
        assert [slots for slots in changed[1:] if slots] == [{SLOT}]
        assert sender.owner(SLOT) == ("127.0.0.1", target)
        assert {node.endpoint[1] for node in await sender.primaries()} == {*cluster.ports}
        assert await read_again() < SLOTS // 50


async def test_who_asks_a_node_that_has_lost_its_last_slot_hears_of_that(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster) as sender:
        node, *others = await sender.primaries()
        found = await read_slot_map(sender.address, sender.address.endpoints, timeout_s=5.0)
        ranges = tuple(
            each._replace(owner=others[0].endpoint) if each.owner == node.endpoint else each
            for each in found.ranges
        )
        sender._apply(replace(found, ranges=ranges))
        await asyncio.gather(*sender._nodes._closing)
        with pytest.raises(BackendUnavailable, match="serves no slot any more"):
            await node.send("TIME", repeatable=True)


async def test_a_walk_begins_again_when_a_node_loses_its_last_slot(cluster: Cluster) -> None:
    async with RedisStateStore(Settings(url=SecretStr(cluster.url), namespace="n")) as store:
        gone = (await store.transport.each_server())[-1][0].options["port"]
        names = {f"n:v1:{{{n}}}:task:x" for n in range(40)}
        names = {each for each in names if await cluster.owner(slot_of(each)) != gone}
        for name in names:
            await store.transport.sender.send("SET", name, 1, repeatable=True)
        walk = KeyWalk(store).all(("task",))
        pages = [await anext(walk)]
        slots = next(
            row[:2] for row in await cluster.ask(gone, "CLUSTER", "SLOTS") if row[2][1] == gone
        )
        for port in cluster.ports:
            await cluster.ask(port, "CLUSTER", "DELSLOTSRANGE", *slots)
        heir = next(port for port in cluster.ports if port != gone)
        await cluster.ask(heir, "CLUSTER", "ADDSLOTSRANGE", *slots)

        async def left() -> bool:
            ports = [address.options["port"] for address, _ in await store.transport.each_server()]
            return len(ports) == 2 and gone not in ports

        await eventually(left, "all nodes know of it, and the node is left")
        pages += [page async for page in walk]
        assert {each.name for page in pages for each in page} == names


async def test_a_slot_that_nobody_has_for_a_while_is_served_again_by_its_node(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("RPUSH", KEY, 1, repeatable=False)
        owner = await cluster.owner(SLOT)
        slots = next(
            row[:2] for row in await cluster.ask(owner, "CLUSTER", "SLOTS") if row[2][1] == owner
        )
        for port in cluster.ports:
            await cluster.ask(port, "CLUSTER", "DELSLOTSRANGE", *slots)
        waiting = sender.send("RPUSH", KEY, 2, repeatable=False)

        async def refused() -> bool:
            return await refusals(cluster, owner, "CLUSTERDOWN") > 5

        await eventually(refused, "it was tried, and the map was read")
        await cluster.ask(owner, "CLUSTER", "ADDSLOTSRANGE", *slots)
        assert await waiting == 2


async def test_each_call_about_moved_keys_is_sent_on_once(cluster: Cluster) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("SET", TWO[0], 1, repeatable=True)
        source, target = await begin_move(cluster)
        await cluster.move_keys(SLOT, source, target)
        calls = [sender.send("RPUSH", KEY, n, repeatable=False) for n in range(200)]
        assert await asyncio.gather(*calls) == list(range(1, 201))
        # All of them once, and each once more when it is the first.
        assert await refusals(cluster, source, "ASK") <= 2 * len(calls)


async def test_a_lasting_call_that_was_cancelled_is_tried_no_more_often_than_another(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("MSET", *TWO, repeatable=True)
        source, target = await begin_move(cluster)
        await cluster.move_keys(SLOT, source, target, most=1)
        # It waits in its slot, and a later one behind it.
        lasting = sender.send("MSET", TWO[0], 3, TWO[2], 4, repeatable=True, lasting=True)
        later = sender.send("MGET", TWO[0], TWO[2], repeatable=True)
        lasting.cancel()
        for tag in range(100):
            await sender.send("SET", f"{tag}", tag, repeatable=True)
            await asyncio.sleep(0)
        assert await refusals(cluster, source, "TRYAGAIN") < 50
        await cluster.move_keys(SLOT, source, target)
        await cluster.end_move(SLOT, target)
        assert await later == [b"3", b"4"]


async def test_a_call_leaves_the_node_that_was_to_take_its_slot_over_and_was_killed() -> None:
    async with (
        running_cluster("--cluster-require-full-coverage", "no") as cluster,
        sender_of(cluster, call_timeout_s=30.0) as sender,
    ):
        source, target = await begin_move(cluster)
        cluster.kill(target)
        calls = [sender.send("RPUSH", KEY, n, repeatable=False) for n in range(3)]

        async def sent_on() -> bool:
            return await refusals(cluster, source, "ASK") > 0

        await eventually(sent_on, "a call was sent on to the killed node")
        await cluster.ask(source, "CLUSTER", "SETSLOT", SLOT, "STABLE")
        assert await asyncio.gather(*calls) == [1, 2, 3]


@pytest.mark.parametrize("connect_timeout_s", [1.0, 15.0])
async def test_the_first_call_to_a_node_that_stands_still_goes_to_its_replica(
    connect_timeout_s: float,
) -> None:
    async with running_cluster(replicas=1) as cluster:
        stopped = await cluster.owner(SLOT)
        elsewhere = f"{{{tag_in([(SLOT + SLOTS // 2) % SLOTS])}}}"
        # The connection is accepted, and nothing is said on it.
        times = {"call_timeout_s": 15.0, "connect_timeout_s": connect_timeout_s}
        async with sender_of(cluster, **times) as sender:
            await sender.send("SET", elsewhere, 1, repeatable=True)
            cluster.stop(stopped)
            try:
                assert await sender.send("RPUSH", KEY, 1, repeatable=False) == 1
            finally:
                cluster.resume(stopped)


async def test_closing_ends_every_call_of_a_slot_in_trouble_and_who_waits_for_them(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("MSET", *TWO, repeatable=True)
        source, target = await begin_move(cluster)
        await cluster.move_keys(SLOT, source, target, most=1)
        waiting = sender.send("MSET", *TWO, repeatable=True)
        draining = asyncio.create_task(sender.drain())

        async def refused() -> bool:
            return await refusals(cluster, source, "TRYAGAIN") > 0

        await eventually(refused, "the call waits in its slot")
        behind = sender.send("RPUSH", KEY, 1, repeatable=False)
        await sender.aclose(drain_s=0)
        await draining
        assert not sender.pending
        for call in (waiting, behind):
            assert isinstance(call.exception(), BackendUnavailable)


async def test_calls_to_a_node_that_has_many_in_flight_leave_together(cluster: Cluster) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("RPUSH", KEY, "0", repeatable=False)
        owner = await cluster.owner(SLOT)
        cluster.stop(owner)
        try:
            calls = [sender.send("RPUSH", KEY, "1", repeatable=False) for _ in range(DENSE)]
            await asyncio.sleep(0)
            before = sender.batches
            # Each is called in a turn of its own, as callers do who follow their replies.
            for _ in range(20):
                calls.append(sender.send("RPUSH", KEY, "2", repeatable=False))
                await asyncio.sleep(0)
            # They do not wait for the node's answer, which may never come.
            await eventually(lambda: all_sent(calls), "all are sent")
            assert sender.batches - before < 10
        finally:
            cluster.resume(owner)
        assert await asyncio.gather(*calls) == list(range(2, DENSE + 22))


def all_sent(calls: list[asyncio.Future[Any]]) -> bool:
    return all(isinstance(call, Call) and call.sent for call in calls)


def lines_of(run: Callable[[], None]) -> int:
    """Count the lines of Python that a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        del frame, argument
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


async def test_who_follows_a_slot_hears_of_the_node_that_a_call_was_sent_on_to(
    cluster: Cluster,
) -> None:
    async with sender_of(cluster) as sender:
        await sender.send("SET", KEY, 1, "PX", 60_000, repeatable=True)
        changed: list[set[int]] = []
        sender.on_slots = changed.append
        source, target = await begin_move(cluster)
        await cluster.move_keys(SLOT, source, target)
        await cluster.end_move(SLOT, target)
        assert await sender.send("GET", KEY, repeatable=True) == b"1"
        assert await refusals(cluster, source, "MOVED")
        assert {SLOT} in changed
