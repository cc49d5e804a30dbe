"""A server that is not the one to ask any more, or not yet, on a connection that lives."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable, OutcomeUnknown
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from tests.integration.transport.test_subscriber import heard
from tests.support.samples import update as make_update
from tests.support.servers.faults import Proxy, run_server, sender_to, short_directory
from tests.support.timing import spending

LATE_S = 0.5


@dataclass(frozen=True)
class Pair:
    """Two servers behind one name, and a way to both that does not go by it."""

    proxy: Proxy
    primary: Sender
    replica: Sender
    replica_port: int
    replica_url: str

    async def in_sync(self) -> bool:
        """Tell whether the replica has all that the primary has."""
        at: list[bytes] = []
        for server in (self.primary, self.replica):
            info: bytes = await server.send("INFO", "replication", repeatable=True)
            fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
            at.append(fields[b"master_repl_offset"])
            if server is self.replica and fields.get(b"master_link_status") != b"up":
                return False
        return at[0] == at[1]

    async def switch(self) -> None:
        """Promote the replica; new connections lead to it, those that are open stay."""
        await eventually(self.in_sync, "the replica is in sync")
        await self.replica.send("REPLICAOF", "NO", "ONE", repeatable=True)
        self.proxy.lead_to(self.replica_url)
        await self.primary.send("REPLICAOF", "127.0.0.1", self.replica_port, repeatable=True)


@asynccontextmanager
async def a_pair(ports: Callable[[], int]) -> AsyncGenerator[Pair]:
    first, second = ports(), ports()
    common = ("--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    with (
        short_directory() as one,
        short_directory() as other,
        run_server(one, "--port", str(first), *common) as primary_url,
        run_server(
            other, "--port", str(second), "--replicaof", "127.0.0.1", str(first), *common
        ) as replica_url,
    ):
        async with (
            Proxy(primary_url) as proxy,
            sender_to(primary_url) as primary,
            sender_to(replica_url) as replica,
        ):
            for server in (primary, replica):
                await server.send("PING", repeatable=True)
            yield Pair(proxy, primary, replica, second, replica_url)


@pytest.fixture
async def pair(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Pair]:
    async with a_pair(unused_tcp_port_factory) as made:
        yield made


async def test_after_a_failover_behind_one_name_calls_go_on_in_order_and_none_is_refused(
    pair: Pair,
) -> None:
    async with sender_to(pair.proxy.url) as sender:
        for number in range(10):
            await sender.send("RPUSH", "list", number, repeatable=False)
        await pair.switch()
        async with spending() as spent:
            # Also those that may not be repeated: nothing was executed.
            calls = [
                sender.send("RPUSH", "list", number, repeatable=bool(number % 2))
                for number in range(10, 210)
            ]
            assert await asyncio.gather(*calls) == list(range(11, 211))
        assert spent.s < LATE_S
        stored: list[bytes] = await pair.replica.send("LRANGE", "list", 0, -1, repeatable=True)
        assert [int(row) for row in stored] == list(range(210))
        assert sender.connections == 2


async def test_a_read_behind_a_write_that_a_replica_refused_sees_that_write(pair: Pair) -> None:
    async with sender_to(pair.proxy.url) as sender:
        await sender.send("SET", "key", "old", repeatable=True)
        await pair.switch()
        sender.send("SET", "key", "new", repeatable=False)
        assert await sender.send("GET", "key", repeatable=True) == b"new"
        assert sender.connections == 2


async def test_watchers_follow_their_store_to_the_new_primary(pair: Pair) -> None:
    settings = Settings(url=SecretStr(pair.proxy.url), namespace="failover")
    async with RedisStateStore(settings) as store:
        subscription = store.transport.subscriber.subscribe("channel")
        assert await heard(subscription) is None
        await store.save_update(make_update("before"))
        await pair.switch()
        # The old primary replicates nothing: who listens there is deaf.
        await pair.primary.send("REPLICAOF", "127.0.0.1", 1, repeatable=True)
        await store.save_update(make_update("after"))
        assert await heard(subscription) is None
        await pair.replica.send("SPUBLISH", "channel", "told", repeatable=True)
        assert await heard(subscription) == b"told"
        assert [each.update_id for each in await store.list_updates("session")] == [
            "before",
            "after",
        ]


async def test_a_store_that_only_has_a_replica_waits_for_its_deadline_and_says_for_what(
    pair: Pair,
) -> None:
    pair.proxy.lead_to(pair.replica_url)
    async with sender_to(pair.proxy.url) as sender:
        began = time.monotonic()
        async with spending() as spent:
            with pytest.raises(BackendUnavailable) as refused:
                await sender.send("SET", "key", "x", repeatable=True, timeout_s=1)
        # It is looked for ever more slowly.
        assert 4 < sender.connections < 20
        for _ in range(3):
            # On a busy machine an attempt may be in flight at the very deadline, and says that.
            if type(refused.value) is BackendUnavailable:
                break
            with pytest.raises(BackendUnavailable) as refused:
                await sender.send("SET", "key", "x", repeatable=True, timeout_s=1)
        assert re.search(r"is a replica.*\(READONLY\)", str(refused.value))
        assert type(refused.value) is BackendUnavailable
        assert time.monotonic() - began >= 1
        assert spent.s < 1 + LATE_S
        assert await sender.send("GET", "key", repeatable=True) is None


CODES = [
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
]
# Refuses a call the first time that it is made.
REFUSING = """\
if redis.call('INCR', KEYS[1]) == 1 then return redis.error_reply(ARGV[1]) end
return ARGV[2]
"""


@pytest.mark.parametrize("text", CODES, ids=[text.split()[0] for text in CODES])
@pytest.mark.role("any", why="it calls what no script does")
async def test_whatever_says_that_a_call_was_not_executed_it_is_made_again_in_order(
    settings: Settings, text: str
) -> None:
    key = f"{settings.namespace}:calls"
    async with sender_to(settings.url.get_secret_value()) as sender:
        refused = sender.send("EVAL", REFUSING, 1, key, text, "done", repeatable=False)
        behind = sender.send("INCRBY", key, 1, repeatable=False)
        last = sender.send("INCRBY", key, 1, repeatable=False)
        assert await refused == b"done"
        # What may not be repeated and was executed keeps its reply; nothing is done twice.
        assert [await behind, await last] == [2, 3]
        assert sender.connections == 2
        await sender.send("DEL", key, repeatable=True)


async def test_a_call_that_may_have_happened_stays_unknown_when_a_replica_refuses_it_later(
    pair: Pair,
) -> None:
    async with sender_to(pair.proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        pair.proxy.silence()
        # The call ends at its deadline. The replica has refused it by then, on a busy machine too.
        call = sender.send("SET", "key", "x", repeatable=True, timeout_s=3.0)
        await eventually(lambda: pair.proxy.swallowed > 0, "the server has executed the call")
        pair.proxy.silence(silent=False)
        pair.proxy.lead_to(pair.replica_url)
        assert pair.proxy.cut()
        with pytest.raises(OutcomeUnknown, match=r"reply lost.*READONLY"):
            await call
