"""One node of a cluster that is out of memory: it keeps nothing of what the others have waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import StoreFull
from redis_state.models import TaskStatus
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import slot_of
from redis_state.worker import TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import client_of, key_of_queue, pool, queued
from tests.support.samples import update
from tests.support.servers.sets.clusters import Cluster, running_cluster
from tests.support.tasks.crash_states import (
    close_queues,
    entry_in_ms,
    make_due,
    submitted,
    sweeper_of,
)
from tests.support.timing import LONG_S

pytestmark = pytest.mark.server
SESSIONS = [f"session-{number}" for number in range(9)]


class Nodes:
    """A store on a cluster, and the node that will be full: it has some sessions, not the queue."""

    def __init__(self, cluster: Cluster, store: RedisStateStore, full: int) -> None:
        self.store = store
        self.full = full
        self._cluster = cluster

    async def port_of(self, session: str) -> int:
        """Return the node of a session."""
        return await self._cluster.owner(slot_of(self.store.updates.keys(session).rows))

    async def on_full(self) -> list[str]:
        """List the sessions of the full node."""
        return [each for each in SESSIONS if await self.port_of(each) == self.full]

    async def fill(self) -> None:
        """Leave the one node no memory. Its sessions take nothing, the others do."""
        await self._cluster.ask(self.full, "CONFIG", "SET", "maxmemory", 1)
        refused = await self.on_full()
        assert 0 < len(refused) < len(SESSIONS)
        for session in SESSIONS:
            if session in refused:
                with pytest.raises(StoreFull):
                    await self.store.save_update(update("more", session_id=session))
            else:
                await self.store.save_update(update("more", session_id=session))

    async def make_room(self) -> None:
        """Give it memory again."""
        await self._cluster.ask(self.full, "CONFIG", "SET", "maxmemory", 0)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with running_cluster() as cluster:
        settings = make_settings(cluster.url, namespace="full", call_timeout_s=20.0)
        async with RedisStateStore(settings) as store:
            queue = await cluster.owner(slot_of(key_of_queue(settings)))
            full = next(each for each in await cluster.primaries() if each != queue)
            yield Nodes(cluster, store, full)
            await close_queues()


async def test_what_has_ended_is_taken_out_and_what_waits_is_queued(nodes: Nodes) -> None:
    store = nodes.store
    waiting = {session: await submitted(store, session=session) for session in SESSIONS}
    ended = {session: await submitted(store, session=session) for session in SESSIONS}
    async with client_of(store) as client:
        for session, task in ended.items():
            await client.cancel(session, task)
    for each in [*waiting.items(), *ended.items()]:
        await make_due(store, watch_entry(*each))
    await nodes.fill()
    sweeper = sweeper_of(store)

    async def settled() -> bool:
        await sweeper.run_once()
        left = [await entry_in_ms(store, watch_entry(*each)) for each in ended.items()]
        return left == [None] * len(ended)

    await eventually(settled, "what has ended is on no watch list", timeout_s=LONG_S)
    names = await queued(store)
    assert sorted(name.split("/")[1].split(":")[0] for name in names) == sorted(waiting.values())
    await nodes.make_room()


async def test_tasks_of_other_nodes_end_and_those_of_the_full_node_once_there_is_room(
    nodes: Nodes,
) -> None:
    store = nodes.store

    async def work(ctx: TaskContext) -> Any:
        return await ctx.step("work", lambda: ctx.input)

    refused = await nodes.on_full()
    async with client_of(store) as client:
        tasks = {each: await client.submit("work", each, session_id=each) for each in SESSIONS}
    await nodes.fill()
    async with pool(store, {"work": work}, max_tasks=4, lease_s=1.0) as client:
        for session, task in tasks.items():
            if session not in refused:
                assert await client.result(session, task, timeout_s=LONG_S) == session
        for session in refused:
            found = await store.tasks.look(session, tasks[session])
            assert found is not None
            assert not found.status.is_terminal
        await nodes.make_room()
        for session in refused:
            assert await client.result(session, tasks[session], timeout_s=LONG_S) == session
    for session, task in tasks.items():
        found = await store.tasks.look(session, task)
        assert found is not None
        assert found.status is TaskStatus.COMPLETE
