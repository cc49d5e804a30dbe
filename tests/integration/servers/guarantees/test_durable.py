"""A `durable` store takes only a server that syncs its file before it answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, ConfigError, LeaseLost
from redis_state.primitives.lease import Leases
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from tests.support.samples import update as make_update
from tests.support.scripts.replies import HOUR
from tests.support.servers.changes.rollback import OwnServer
from tests.support.servers.faults import (
    sender_to,
    short_directory,
)
from tests.support.servers.sets.guarantees import (
    commands,
    own_server,
)
from tests.support.timing import LONG_S

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
    async with own_server(*options) as url:
        async with RedisStateStore(make_settings(url, guarantee="durable")) as store:
            for _ in range(2):
                with pytest.raises(ConfigError, match=wrong):
                    await store.save_update(make_update("u"))
        async with RedisStateStore(make_settings(url)) as store:
            assert (await store.read_updates("session")).values == []


@pytest.mark.server
async def test_a_server_that_syncs_before_it_answers_is_durable() -> None:
    async with (
        own_server(*ALWAYS) as url,
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
        own_server(*ALWAYS) as url,
        RedisStateStore(make_settings(url, guarantee="durable", call_timeout_s=0.5)) as store,
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
                lambda: re.search("could not be renewed: .*server cannot promise", caplog.text),
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
        own_server("--appendonly", "no", "--appendfsync", "always") as url,
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
        own_server(*ALWAYS) as url,
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
    async with own_server(*ALWAYS) as url:
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
