"""A server that refuses writes, and answers reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, OutcomeUnknown, StoreFull
from redis_state.settings import make_settings
from redis_state.testing import eventually
from tests.support.samples import update as make_update
from tests.support.servers.faults import run_server, sender_to, short_directory
from tests.support.timing import LONG_S

Guarantee: TypeAlias = Literal["fast", "replicated"]


async def keep_what_is_used(store: RedisStateStore) -> None:
    """Keep what counts as used when it is read, or lives on."""
    await store.artifact_store.put_text("text")
    await store.streams.create("stream", data=b"row")


async def read_what_is_used(store: RedisStateStore) -> None:
    """Read it, on the connection that the store has."""
    connections = store.transport.sender.connections
    (artifact,) = await store.artifact_store.list()
    assert await store.artifact_store.get(artifact.id) == b"text"
    assert (await store.streams.read("stream")).rows == (b"row",)
    await store.drain()
    assert store.transport.sender.connections == connections


def store_of(url: str, guarantee: Guarantee) -> RedisStateStore:
    """Make a store of a server that has no replica."""
    return RedisStateStore(make_settings(url, guarantee=guarantee, call_timeout_s=LONG_S))


async def lose_the_disk(store: RedisStateStore, directory: Path) -> None:
    """Have a server that saves to a directory fail to, and so take no writes."""
    # A folder stands where its file would.
    (directory / "dump.rdb" / "x").mkdir(parents=True)
    await store.transport.sender.send("BGSAVE", repeatable=True)

    async def refuses_writes() -> bool:
        try:
            await store.save_memory_state("probe", {})
        except StoreFull:
            return True
        return False

    await eventually(refuses_writes, "writes are refused")


@asynccontextmanager
async def without_a_disk() -> AsyncGenerator[str]:
    """Run a server that cannot save, and so takes no writes; it has k, an artifact, a stream."""
    with short_directory() as directory, run_server(directory, "--save", "3600 1") as url:
        async with RedisStateStore(make_settings(url)) as before:
            await before.save_memory_state("k", {"n": 1})
            await keep_what_is_used(before)
            await lose_the_disk(before, directory)
        yield url


@pytest.mark.server
async def test_reads_are_answered_while_a_server_has_too_few_replicas_for_writes() -> None:
    with short_directory() as directory, run_server(directory) as url:
        settings = make_settings(url, call_timeout_s=LONG_S)
        async with RedisStateStore(settings) as store, sender_to(url) as admin:
            await store.save_memory_state("k", {"n": 1})
            await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
            # More than leave in one batch.
            writes = [
                asyncio.ensure_future(store.save_memory_state(f"w{number}", {"n": number}))
                for number in range(40)
            ]
            behind = asyncio.ensure_future(store.load_memory_state("w0"))
            for _ in range(20):
                assert await store.load_memory_state("k") == {"n": 1}
            assert not any(write.done() for write in writes)
            # What is called behind a write, and about its key, comes after it.
            assert not behind.done()
            await admin.send("CONFIG", "SET", "min-replicas-to-write", 0, repeatable=True)
            await asyncio.gather(*writes)
            assert await behind == {"n": 0}


@pytest.mark.server
async def test_reads_do_not_wait_while_a_server_refuses_writes() -> None:
    async with without_a_disk() as url:
        replicated = make_settings(url, guarantee="replicated", call_timeout_s=LONG_S)
        async with RedisStateStore(replicated) as store:
            for _ in range(5):
                written = asyncio.ensure_future(store.save_memory_state("w", {}))
                assert await store.load_memory_state("k") == {"n": 1}
                with pytest.raises(StoreFull, match="MISCONF"):
                    await written


@pytest.mark.server
async def test_a_replicated_store_keeps_its_connection_to_a_server_that_refuses_writes() -> None:
    async with without_a_disk() as url:
        replicated = make_settings(url, guarantee="replicated", call_timeout_s=LONG_S)
        async with RedisStateStore(replicated) as store:
            for number in range(5):
                # A script that neighbours share: whether they may is asked on each connection.
                with pytest.raises(StoreFull, match="MISCONF"):
                    await store.save_update(make_update(f"u{number}"))
            assert store.transport.sender.connections == 1


@pytest.mark.server
@pytest.mark.parametrize("guarantee", ["fast", "replicated"])
async def test_what_is_used_is_read_while_a_server_cannot_save(guarantee: Guarantee) -> None:
    async with without_a_disk() as url, store_of(url, guarantee) as store:
        with pytest.raises(StoreFull, match="MISCONF"):
            await store.save_memory_state("k", {})
        await read_what_is_used(store)


@pytest.mark.server
@pytest.mark.parametrize("guarantee", ["fast", "replicated"])
async def test_what_is_used_is_read_while_a_server_has_too_few_replicas(
    guarantee: Guarantee,
) -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with (
            RedisStateStore(make_settings(url)) as before,
            store_of(url, guarantee) as store,
            sender_to(url) as admin,
        ):
            await keep_what_is_used(before)
            assert await store.load_memory_state("k") is None
            await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
            with pytest.raises(BackendUnavailable, match="NOREPLICAS"):
                await admin.send("SET", "k", 1, "PX", 1, repeatable=True, timeout_s=0.5)
            await read_what_is_used(store)


@pytest.mark.server
async def test_a_reader_of_what_is_used_does_not_wait_for_replicas() -> None:
    with short_directory() as directory, run_server(directory) as url:
        replicated = make_settings(url, guarantee="replicated", call_timeout_s=2.0)
        async with (
            RedisStateStore(make_settings(url)) as store,
            RedisStateStore(replicated) as reader,
        ):
            await keep_what_is_used(store)
            with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                await reader.save_memory_state("k", {})
            await read_what_is_used(reader)
