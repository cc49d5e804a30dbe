"""What a `replicated` store acknowledged is on a replica, however the replica lags."""

from __future__ import annotations

import asyncio

import pytest

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, ConfigError, OutcomeUnknown
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from tests.support.samples import update as make_update
from tests.support.servers.changes.rollback import Replicas
from tests.support.servers.faults import (
    sender_to,
)
from tests.support.servers.sets.guarantees import (
    SHORT_S,
    WRITERS,
    commands,
    counted,
    late,
    own_server,
    settings_of,
)
from tests.support.servers.sets.load import Load, load
from tests.support.timing import LONG_S


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
async def test_a_cancelled_caller_holds_nobody_up(lagging: Replicas) -> None:
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=LONG_S)) as store:
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


@pytest.mark.server
async def test_a_user_without_the_right_to_wait_is_told_when_he_connects() -> None:
    async with own_server() as url:
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
        own_server() as url,
        RedisStateStore(settings_of(url, call_timeout_s=SHORT_S)) as store,
    ):
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
            await store.save_update(make_update("u"))
