"""Erasure as a user of the server, and on a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis as blocking
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.erasure import Eraser
from redis_state.errors import CommandRefused, LostRace
from redis_state.rights import Role, user_rule
from redis_state.transport.cluster.sender import ClusterSender
from redis_state.transport.cluster.slots import SlotMap, slot_of
from redis_state.transport.connections.address import Address
from redis_state.worker import TaskClient
from tests.support.erasure import fill, left_over, nothing_is_left
from tests.support.servers.faults import sender_to
from tests.support.servers.sets.clusters import Cluster, running_cluster

pytestmark = pytest.mark.server
PASSWORD = "s3cret"


async def erased(store: RedisStateStore, *, other: str = "other-one") -> None:
    """Erase one of two sessions, with a task that waits."""
    for trace, session in enumerate(("erased-one", other)):
        await fill(store, session, f"trace-{trace}")
    async with TaskClient(store) as client:
        await client.submit("nobody", session_id="erased-one", task_id="t", attributes={"user": 1})
        report = await client.forget_user(1)
    assert (report.sessions, report.failed) == (["erased-one"], {})
    assert report.redis["tasks"] == 2


async def test_an_admin_may_and_a_worker_changes_nothing(own_url: str) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    async with sender_to(own_url) as admin:
        for role in (Role.ADMIN, Role.WORKER):
            user, *words = user_rule(plain, role).words()
            given = ("reset", f">{PASSWORD}", *words)
            await admin.send("ACL", "SETUSER", user, *given, repeatable=True)

    def as_role(role: Role) -> Settings:
        url = own_url.replace("unix://", f"unix://t-{role.value}:{PASSWORD}@")
        return Settings(url=SecretStr(url), namespace="t")

    async with RedisStateStore(as_role(Role.WORKER)) as store:
        await fill(store, "erased-one", "its-trace")
        with pytest.raises(CommandRefused, match=r"(?i)scan"):
            await store.forget("erased-one")
        assert len(await store.list_tasks("erased-one")) == 1
        assert await store.load_memory_state("erased-one") == {"of": "memory"}
    async with RedisStateStore(as_role(Role.ADMIN)) as store:
        await erased(store)
    async with RedisStateStore(plain) as store:
        await nothing_is_left(store, "erased-one")
        assert await left_over(store, "other-one") != []


async def test_a_session_in_all_slots_of_a_cluster_is_erased() -> None:
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="t")
        async with RedisStateStore(settings) as store:
            await erased(store)
            await nothing_is_left(store, "erased-one")
            assert len(await store.list_tasks("other-one")) == 1


async def test_no_key_is_missed_while_slots_move() -> None:
    """A key that moves to a node that was walked through is in no page."""
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="t")
        async with RedisStateStore(settings) as store:
            await fill(store, "erased-one", "its-trace")
            owner, other = cluster.ports[:2]
            empty = await cluster.empty_slot(owner)
            await cluster.begin_move(empty, other)
            with pytest.raises(LostRace, match="are being moved"):
                await store.forget("erased-one")
            assert len(await store.list_tasks("erased-one")) == 1
            await cluster.end_move(empty, other)
            await walked_past(cluster, store, slot_of("erased-one"))
            await nothing_is_left(store, "erased-one")


async def test_what_went_to_a_new_node_without_a_call_about_it_is_erased() -> None:
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="t")
        memory = "tenant:user:erased-one"
        async with RedisStateStore(settings) as store, RedisStateStore(settings) as other:
            await store.save_memory_state(memory, {"of": "memory"})
            slot = slot_of(store.base.keys.memory(memory))
            await cluster.move([slot], await cluster.join())
            report = await store.forget("erased-one")
            assert (report.redis, report.failed) == ({"memories": 1}, {})
            assert await other.load_memory_state(memory) is None


async def test_a_map_that_is_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a node that has not heard of the move yet."""
    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="t")
        async with RedisStateStore(settings) as store:
            await fill(store, "erased-one", "its-trace")
            sender = store.transport.sender
            assert isinstance(sender, ClusterSender)
            behind = await sender._find_slots()

            async def find() -> SlotMap:
                return behind

            monkeypatch.setattr(sender, "_find_slots", find)
            source, target = cluster.ports[0], await cluster.join()
            empty = await cluster.empty_slot(source)
            await cluster.move([empty], target)
            with pytest.raises(LostRace, match="are being moved"):
                await store.forget("erased-one")
            monkeypatch.undo()
            await store.forget("erased-one")
            await nothing_is_left(store, "erased-one")


async def addresses(store: RedisStateStore) -> list[Address]:
    return [address for address, _ in await store.transport.each_server()]


async def walked_past(cluster: Cluster, store: RedisStateStore, slot: int) -> None:
    """Erase, and have the slot go to the first node once the walk has left it."""
    servers = [
        int(str(address).rpartition(":")[2].partition("/")[0]) for address in await addresses(store)
    ]
    await cluster.move([slot], servers[-1])
    pages: list[int] = []

    def move_once(what: str, number: int) -> None:
        if what == "keys" and not pages:
            pages.append(number)
            move_at_once(cluster, slot, servers[-1], servers[0])

    async with Eraser(store, progress=move_once) as eraser:
        report = await eraser.forget("erased-one", dry_run=True)
        assert pages
        assert await cluster.owner(slot) == servers[0]
        assert report.redis["tasks"] == report.redis["trajectories"] == 1
        await eraser.forget("erased-one")


def move_at_once(cluster: Cluster, slot: int, source: int, target: int) -> None:
    """Move a slot with its keys without waiting for the loop of the caller."""
    with (
        cast("Any", blocking).Redis(port=source) as of,
        cast("Any", blocking).Redis(port=target) as to,
    ):
        to.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.ids[source])
        of.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.ids[target])
        keys = of.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        assert keys
        of.execute_command("MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)
    cluster.give_at_once(slot, source, target)
