"""Watchers of a cluster: each follows the node that has its session, wherever that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.errors import AuthenticationFailed
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import slot_of
from redis_state.transport.cluster.subscriber import ClusterSubscriber
from redis_state.transport.keys import Keys
from tests.support.samples import update as make_update
from tests.support.servers.sets.clusters import Cluster, running_cluster, tag_in
from tests.support.timing import LONG_S

pytestmark = pytest.mark.server
SESSIONS = [f"session{number}" for number in range(60)]
SLOTS = {session: slot_of(Keys("watched").updates(session).rows) for session in SESSIONS}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster(replicas=1) as made:
        yield made


def settings_of(cluster: Cluster) -> Settings:
    return make_settings(cluster.url, namespace="watched", call_timeout_s=20.0)


async def test_a_watcher_that_is_refused_leaves_nothing_behind(cluster: Cluster) -> None:
    url = cluster.url.replace("://", "://nobody:wrong@")
    settings = make_settings(url, namespace="watched", call_timeout_s=5.0)
    async with RedisStateStore(settings) as store:
        for session in SESSIONS:
            with pytest.raises(AuthenticationFailed):
                async with aclosing(store.watch_updates(session)) as entries:
                    await anext(entries)
        subscriber = store.transport.subscriber
        assert isinstance(subscriber, ClusterSubscriber)
        assert not subscriber._channels


class Watchers:
    """Writers of many sessions, and a watcher of each."""

    def __init__(self, store: RedisStateStore) -> None:
        self.store = store
        self.seen: dict[str, list[str]] = {session: [] for session in SESSIONS}
        self.written = 0
        self._watching = [asyncio.create_task(self._watch(session)) for session in SESSIONS]

    async def write(self) -> None:
        """Write a row to each session, all at once."""
        name = f"u{self.written}"
        self.written += 1
        await asyncio.gather(
            *(self.store.save_update(make_update(name, session_id=each)) for each in SESSIONS)
        )

    async def all_seen(self) -> None:
        """Wait until each watcher has seen each row, once and in order."""
        wanted = [f"u{number}" for number in range(self.written)]
        await eventually(
            lambda: all(seen == wanted for seen in self.seen.values()),
            "each has seen all",
            timeout_s=LONG_S,
        )

    async def aclose(self) -> None:
        """End the watchers."""
        for task in self._watching:
            task.cancel()
        await asyncio.wait(self._watching)

    async def _watch(self, session: str) -> None:
        async with aclosing(self.store.watch_updates(session)) as entries:
            async for entry in entries:
                self.seen[session].append(entry.value.update_id)


async def test_watchers_follow_their_slots_and_see_each_row_once(cluster: Cluster) -> None:
    async with RedisStateStore(settings_of(cluster)) as store:
        watchers = Watchers(store)
        try:
            await watchers.write()
            await watchers.all_seen()
            # A connection to each primary, and not one for each session.
            assert store.transport.subscriber.connections == 3
            target = cluster.ports[1]
            moved = 0
            for slot in list(SLOTS.values())[:20]:
                moved += await cluster.owner(slot) != target
                await cluster.move([slot], target)
                await watchers.write()
            assert moved > 5
            await watchers.all_seen()
            cluster.kill(target)
            await asyncio.gather(*(watchers.write() for _ in range(5)))
            await cluster.failed_over(target)
            await watchers.write()
            await watchers.all_seen()
        finally:
            await watchers.aclose()


async def test_a_node_that_has_lost_all_that_is_watched_is_left(cluster: Cluster) -> None:
    async with RedisStateStore(settings_of(cluster)) as store:
        watchers = Watchers(store)
        try:
            await watchers.write()
            await watchers.all_seen()
            gone = cluster.ports[0]

            async def listeners() -> int:
                channels = [Keys("watched").updates(session).channel for session in SESSIONS]
                counts = await cluster.ask(gone, "PUBSUB", "SHARDNUMSUB", *channels)
                return sum(counts[1::2])

            assert await listeners() > 0
            there = [slot for slot in SLOTS.values() if await cluster.owner(slot) == gone]
            await cluster.move(there, cluster.ports[1])
            await watchers.write()
            await watchers.all_seen()

            async def nobody() -> bool:
                return await listeners() == 0

            await eventually(nobody, "nobody listens there")
        finally:
            await watchers.aclose()


async def test_a_channel_is_left_at_the_moment_in_which_its_slot_has_left(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The news that the slot has another node looks like the answer."""
    source, target = cluster.ports[:2]
    leaving, staying, coming = (f"{{{tag_in([slot])}}}" for slot in (7, 8, 9))
    async with RedisStateStore(settings_of(cluster)) as store:
        await store.save_update(make_update("the map is known"))
        subscriber = store.transport.subscriber
        left, stays = subscriber.subscribe(leaving), subscriber.subscribe(staying)
        assert [await left.next(), await stays.next()] == [None, None]
        connections = subscriber.connections
        # In the loop's own thread: what the node says meanwhile is read later.
        cluster.give_at_once(7, source, target)
        subscriber.unsubscribe(left)
        comes = subscriber.subscribe(coming)
        assert await comes.next() is None
        for channel, follows in ((staying, stays), (coming, comes)):
            assert await cluster.ask(source, "SPUBLISH", channel, "hello") == 1
            assert await follows.next() == b"hello"
        assert subscriber.connections == connections
        for subscription in (stays, comes):
            subscriber.unsubscribe(subscription)
    assert "protocol" not in caplog.text


async def test_an_append_is_published_to_no_other_primary(cluster: Cluster) -> None:
    async with RedisStateStore(settings_of(cluster)) as store:
        watchers = Watchers(store)
        try:
            for _ in range(5):
                await watchers.write()
            await watchers.all_seen()
        finally:
            await watchers.aclose()
        for port in cluster.ports[:3]:
            stated: str = await cluster.ask(port, "CLUSTER", "INFO")
            assert "cluster_state:ok" in stated
            assert "cluster_stats_messages_publish_sent" not in stated


async def test_a_watcher_of_a_cluster_that_refuses_it_hears_why(cluster: Cluster) -> None:
    wrong = make_settings(cluster.url.replace("://", "://:wrong@"), call_timeout_s=2.0)
    async with RedisStateStore(wrong) as store:
        with pytest.raises(AuthenticationFailed):
            async with aclosing(store.watch_updates("session")) as entries:
                await anext(entries)
