"""Sweeping a cluster of which a primary is down: the work of the others goes on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import NoConnection
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.tasks.move_parts import watch_entry
from tests.support.processes.pools import key_of_queue, queued
from tests.support.servers.sets.clusters import Cluster, running_cluster
from tests.support.tasks.crash_states import close_queues, make_due, submitted, sweeper_of

pytestmark = pytest.mark.server


async def _task_on(store: RedisStateStore, is_there: Callable[[int, int], bool]) -> tuple[str, str]:
    """Submit a task without a job, with its record and its entry in slots of some kind."""
    for number in range(1_000):
        session = f"session {number}"
        task = await submitted(store, session=session)
        shard = zlib.crc32(watch_entry(session, task)) % WATCH_SHARDS
        keys = store.base.keys
        if is_there(slot_of(keys.task(session, task)), slot_of(keys.watch(shard))):
            await make_due(store, watch_entry(session, task))
            return session, task
    raise AssertionError("no session has such slots")


async def test_a_sweep_leaves_out_the_node_that_is_down_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_cluster("--cluster-require-full-coverage", "no") as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="spread", call_timeout_s=2.0)
        async with RedisStateStore(settings) as store:
            try:
                await _sweep_without_a_node(cluster, store, caplog)
            finally:
                await close_queues()


async def _sweep_without_a_node(
    cluster: Cluster, store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    primaries, queue_at = cluster.ports, await cluster.owner(slot_of(key_of_queue(store.settings)))
    down = next(port for port in primaries if port != queue_at)
    lost = await cluster.slots(down)
    here = await _task_on(store, lambda task, entry: task not in lost and entry not in lost)
    unread = await _task_on(store, lambda task, entry: task in lost and entry not in lost)
    unlisted = await _task_on(store, lambda task, entry: task not in lost and entry in lost)
    cluster.kill(down)
    sweeper = sweeper_of(store)
    for _ in range(3):
        # For the task whose record is on that node.
        with pytest.raises(NoConnection):
            await sweeper.run_once()
        names = {name.rpartition("/")[2] for name in await queued(store)}
        assert f"{here[1]}:0" in names
        assert names.isdisjoint(f"{task}:0" for _, task in (unread, unlisted))
    said = [record.message for record in caplog.records if "part of a watch list" in record.message]
    assert len(said) == 1
    assert f":{down}" in said[0]
    cluster.start_node(down)
    await cluster.settled()

    async def whole() -> bool:
        with suppress(NoConnection):
            await sweeper.run_once()
            return True
        return False

    await eventually(whole, "a round goes well")
