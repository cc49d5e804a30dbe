"""A thread has one writer while it is claimed, and a killed one loses nothing acknowledged."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")


from redis_state import (
    BackendUnavailable,
    LeaseLost,
    RedisStateStore,
    Settings,
    ThreadClaimed,
)
from redis_state.integrations.langgraph import RedisSaver
from redis_state.primitives.lease import Leases
from redis_state.testing import eventually
from tests.support.agents.checkpoints import listed, put
from tests.support.agents.graphs import config_of, counting
from tests.support.processes import forkserver
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy


async def test_a_claimed_thread_has_one_writer(store: RedisStateStore, settings: Settings) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        async with one.claim("t") as claim:
            assert claim.epoch > 0
            graph = counting(one)
            await graph.ainvoke({"log": ["mine"]}, config_of("t"))
            count = len(await listed(one, config_of("t")))
            for call in (
                put(other, "t", n=1),
                other.adelete_thread("t"),
                other.aprune(["t"]),
                counting(other).ainvoke({"log": ["theirs"]}, config_of("t")),
                _enter(other),
            ):
                with pytest.raises(ThreadClaimed) as refused:
                    await call
                assert refused.value.thread_id == "t"
            assert len(await listed(other, config_of("t"))) == count
            await put(other, "u", n=1)
        await put(other, "t", n=1)


async def test_a_writer_whose_claim_was_taken_over_is_refused(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        async with one.claim("t", lease_s=30) as claim:
            await put(one, "t", n=0)
            config = await put(one, "t", n=1)
            # The process stood still for longer than its lease.
            await store.base.scripts.transport.sender.send(
                "HSET", store.base.keys.graph_thread("t"), "expires", 1, repeatable=True
            )
            async with other.claim("t") as taken:
                assert taken.epoch > claim.epoch
                for call in (
                    put(one, "t", n=2),
                    one.aput_writes(config, [("a", 1)], "task"),
                    one.aprune(["t"]),
                    one.adelete_thread("t"),
                ):
                    with pytest.raises(LeaseLost):
                        await call
                await put(other, "t", n=3)
        found = await other.aget_tuple(config_of("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 3}


@pytest.mark.parametrize("after", ["given back", "not given back", "entered again"])
async def test_a_task_that_outlives_its_claim_is_refused(
    store: RedisStateStore, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = RedisSaver(store)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def outlives(config: Any, epoch: int) -> None:
        await put(saver, "t", n=1)
        begun.set()
        await ended.wait()
        for call in (
            put(saver, "t", n=2),
            saver.aput_writes(config, [("a", 1)], "task"),
            saver.aprune(["t"]),
            saver.adelete_thread("t"),
            asyncio.to_thread(saver.delete_thread, "t"),
        ):
            with pytest.raises(LeaseLost, match="was released") as lost:
                await call
            assert lost.value.epoch == epoch
        await put(saver, "u", n=0)

    async def unreachable(*_: object, **__: object) -> None:
        raise BackendUnavailable("the server", "none")

    claim = saver.claim("t")
    async with claim:
        late = asyncio.create_task(outlives(await put(saver, "t", n=0), claim.epoch))
        await begun.wait()
        if after == "not given back":
            # At the server it is claimed still, until it runs out.
            monkeypatch.setattr(Leases, "release", unreachable)
    if after == "entered again":
        async with claim:
            ended.set()
            await late
    ended.set()
    await late
    found = await saver.aget_tuple(config_of("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": 1}


async def test_a_claim_of_its_own_lets_a_task_write_that_outlives_another(
    store: RedisStateStore,
) -> None:
    saver, ended = RedisSaver(store), asyncio.Event()

    async def outlives() -> None:
        await ended.wait()
        async with saver.claim("t"):
            await put(saver, "t", n=1)
        with pytest.raises(LeaseLost):
            await put(saver, "t", n=2)

    async with saver.claim("t"):
        late = asyncio.create_task(outlives())
    ended.set()
    await late
    await put(saver, "t", n=3)


async def test_a_claim_is_renewed_and_reports_its_loss(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    async with saver.claim("t", lease_s=0.3) as claim:
        key = store.base.keys.graph_thread("t")
        commands = store.base.scripts.transport.commands
        first = int(await commands.hget(key, "expires"))

        async def is_renewed() -> bool:
            return int(await commands.hget(key, "expires")) > first

        await eventually(is_renewed, "the claim is renewed")
        taken = {"owner": "other", "claim": "other", "epoch": str(claim.epoch + 1)}
        flat = [part for pair in taken.items() for part in pair]
        await store.base.scripts.transport.sender.send("HSET", key, *flat, repeatable=True)

        async def is_lost() -> bool:
            return claim.is_lost

        await eventually(is_lost, "the claim is lost")


@pytest.mark.parametrize(("script", "at"), [("acquire_lease", 1), ("enter_listing", 2)])
async def test_who_is_cancelled_at_its_claim_leaves_the_thread_free(
    store: RedisStateStore, settings: Settings, script: str, at: int
) -> None:
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as behind,
    ):
        claiming = asyncio.create_task(_enter(RedisSaver(behind)))

        async def cancel() -> None:
            claiming.cancel()

        with proxy.meanwhile(script, cancel, at=at):
            await asyncio.wait({claiming})
        assert claiming.cancelled()
        saver = RedisSaver(store)

        async def is_claimed() -> bool:
            with suppress(ThreadClaimed):
                await _enter(saver)
                return True
            return False

        await eventually(is_claimed, "another one may claim the thread", timeout_s=10)


async def _enter(saver: RedisSaver) -> None:
    async with saver.claim("t"):
        pass


async def test_a_killed_writer_loses_nothing_that_was_acknowledged(
    store: RedisStateStore, settings: Settings
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "thread": "t",
    }
    for _ in range(2):
        processes = [
            await forkserver.start(
                "-m",
                "tests.processes.langgraph_writer",
                json.dumps({**argument, "name": name}),
                environment={},
            )
            for name in "ab"
        ]
        printed: dict[str, list[str]] = {"a": [], "b": []}
        for name, process in zip("ab", processes, strict=True):
            assert process.stdout is not None
            for _ in range(20):
                printed[name].append((await process.stdout.readline()).decode().strip())
        for process in processes:
            process.kill()
            await process.wait()
        saver = RedisSaver(store)
        for name, ids in printed.items():
            found = await listed(saver, config_of("t", checkpoint_ns=name))
            by_id = {each.checkpoint["id"]: each for each in found}
            assert set(ids) <= by_id.keys()
            for id_ in ids:
                each = by_id[id_]
                number = each.metadata["step"]
                assert each.checkpoint["channel_values"] == {"n": number}
                assert each.pending_writes == [
                    (f"task {number}", "n", number),
                    (f"task {number}", "m", name),
                ]
        await saver.adelete_thread("t")
        assert await listed(saver, None) == []
