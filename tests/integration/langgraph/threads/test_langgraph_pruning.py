"""Pruning and deletions of runs while others write, and what a process remembers of a thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from redis_state import Conflict, RedisStateStore, Settings
from redis_state.integrations.langgraph import RedisSaver
from redis_state.integrations.langgraph.threads.newest import Newest
from redis_state.integrations.langgraph.threads.stored.tails import StoredValue
from redis_state.integrations.langgraph.threads.threads import Threads
from redis_state.testing import eventually
from tests.support.agents.graphs import config_of
from tests.support.processes import children, forkserver
from tests.support.samples import changed
from tests.support.scripts.replies import ask
from tests.support.servers.proxies.command_proxy import CommandProxy

WRITERS = "abc"


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def far(settings: Settings, proxy: CommandProxy) -> AsyncIterator[RedisSaver]:
    """Give a saver through the proxy."""
    async with changed(settings, url=proxy.url) as opened:
        yield RedisSaver(opened)


async def grown(saver: RedisSaver, count: int, *, run: str) -> list[str]:
    """Put a conversation into the thread ``t``; return the ids of its checkpoints."""
    config, ids, text = config_of("t"), list[str](), list[str]()
    for number in range(count):
        checkpoint = empty_checkpoint()
        text = [*text[: number % 30], f"{number} " * 90]
        checkpoint["channel_values"] = {"text": text}
        checkpoint["channel_versions"] = {"text": saver.get_next_version(None, None)}
        about: Any = {"source": "loop", "step": number, "run_id": run}
        config = await saver.aput(config, checkpoint, about, checkpoint["channel_versions"])
        ids.append(checkpoint["id"])
    return ids


@asynccontextmanager
async def writers(settings: Settings, summaries: list[dict[str, int]]) -> AsyncGenerator[None]:
    """Run processes that put into the thread ``t`` all the time."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "thread": "t",
    }
    processes = [
        await forkserver.start(
            "-m",
            "tests.processes.langgraph_steady_writer",
            json.dumps({**argument, "name": name}),
            environment={},
        )
        for name in WRITERS
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert (await process.stdout.readline()).strip() == b"begun"
        yield
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.stdout is not None
            summaries.append(json.loads(await process.stdout.readline()))
            assert await process.wait() == 0
    finally:
        await asyncio.gather(*map(children.end, processes))


async def test_a_pruning_ends_while_processes_write_all_the_time(
    store: RedisStateStore, settings: Settings
) -> None:
    saver = RedisSaver(store)
    commands, order = store.base.scripts.transport.commands, store.base.keys.graph_order("t")

    async def there() -> set[str]:
        places = await commands.zrange(order, 0, -1)
        return {place.decode().partition(":")[2] for place in places}

    old = {*await grown(saver, 450, run="old")}
    summaries: list[dict[str, int]] = []
    async with writers(settings, summaries), asyncio.timeout(60):
        for _ in range(3):
            before = await there()
            await saver.aprune(["t"])
            left = before & await there()
            # The newest, and those on which the writers put meanwhile.
            assert len(left) <= 1 + 20 * len(WRITERS)
            assert not left & old
            new = await there()

            async def written(new: set[str] = new) -> bool:
                return len(await there() - new) > 30

            await eventually(written, "others have written on")
        more = await grown(saver, 5, run="deleted")
        await saver.adelete_for_runs(["deleted", "a"])
        assert not {*more} & await there()
    # Three times more than 30 were waited for, of whichever writer.
    assert sum(each["puts"] for each in summaries) > 90
    assert all(each["read"] > each["puts"] > 0 for each in summaries)
    await saver.adelete_for_runs(["a"])
    runs = [each.metadata.get("run_id") async for each in saver.alist(config_of("t"))]
    assert {*runs} == {"b", "c"}
    await saver.aprune(["t"])
    assert len([each async for each in saver.alist(config_of("t"))]) == 1


@pytest.mark.parametrize("lost", [1, None], ids=["once", "each time"])
async def test_a_pruning_whose_list_of_puts_is_lost_lists_again(
    store: RedisStateStore, proxy: CommandProxy, far: RedisSaver, lost: int | None
) -> None:
    """As on a server that evicts keys, or whose history goes back."""
    saver = RedisSaver(store)
    ids = await grown(saver, 6, run="r")

    async def lose() -> None:
        assert await store.transport.commands.unlink(saver._threads.keys("t").puts)

    with proxy.meanwhile("drop_checkpoints", lose, times=lost) as losing:
        if lost == 1:
            await far.aprune(["t"])
            assert losing.seen == 2
        else:
            with pytest.raises(Conflict, match="thread 't'"):
                await far.aprune(["t"])
    left = [each.checkpoint["id"] async for each in saver.alist(config_of("t"))]
    assert left == (ids[-1:] if lost == 1 else ids[::-1])


async def test_puts_of_an_older_version_are_not_pruned(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a version does not list what it puts."""
    saver = RedisSaver(store)
    await grown(saver, 6, run="r")
    list_all, done = Threads.all_of, False

    async def list_and_put(self: Threads, thread_id: str, scope: str) -> Any:
        nonlocal done
        found = await list_all(self, thread_id, scope)
        if not done:
            done = True
            puts, commands = self.keys(thread_id).puts, store.base.scripts.transport.commands
            (entry,) = await ask(store.base.scripts, "LRANGE", puts, 0, -1)
            await grown(saver, 1, run="r")
            assert await commands.unlink(puts)
            await store.base.scripts.watch_graph_puts(
                self.keys(thread_id), watch=entry.decode(), ttl_ms=60_000
            )
        return found

    monkeypatch.setattr(Threads, "all_of", list_and_put)
    await saver.aprune(["t"])
    assert done
    (left,) = [each async for each in saver.alist(config_of("t"))]
    assert len(left.checkpoint["channel_values"]["text"]) == 1


async def test_a_bases_reply_ends_behind_what_is_large(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = RedisSaver(store)
    ids = await grown(saver, 40, run="r")
    replies, read = list[int](), type(store.base.scripts).read_bases

    async def counted(self: Any, *args: Any, **more: Any) -> Any:
        reply = await read(self, *args, **more)
        replies.append(len(reply.facts))
        return reply

    monkeypatch.setattr(type(store.base.scripts), "read_bases", counted)
    monkeypatch.setattr("redis_state.integrations.langgraph.threads.threads.MOST_BYTES", 2000)
    await saver.aprune(["t"])
    assert sum(replies) == 40
    assert len(replies) > 5
    (left,) = [each async for each in saver.alist(config_of("t"))]
    assert left.checkpoint["id"] == ids[-1]
    assert len(left.checkpoint["channel_values"]["text"]) == 10


@pytest.mark.parametrize("lost", ["pruned", "deleted", "its runs deleted"])
async def test_a_copy_into_a_thread_that_loses_checkpoints_has_all_its_values(
    store: RedisStateStore, proxy: CommandProxy, far: RedisSaver, lost: str
) -> None:
    """Two checkpoints of one value each, and the target loses what was copied before the rest."""
    saver = RedisSaver(store)
    same, config = saver.get_next_version(None, None), config_of("t")
    for number in range(30):
        checkpoint, version = empty_checkpoint(), saver.get_next_version(None, None)
        checkpoint["channel_values"] = {"same": "s" * 600, "own": number}
        checkpoint["channel_versions"] = {"same": same, "own": version}
        new: Any = checkpoint["channel_versions"] if number == 0 else {"own": version}
        config = await saver.aput(config, checkpoint, {"run_id": "r"}, new)
    wanted = {each.checkpoint["id"]: each async for each in saver.alist(config_of("t"))}
    if lost == "pruned":
        await saver.aput(config_of("u"), empty_checkpoint(), {}, {})

    async def lose() -> None:
        if lost == "pruned":
            await saver.aprune(["u"])
        elif lost == "deleted":
            await saver.adelete_thread("u")
        else:
            await saver.adelete_for_runs(["r"])

    with (
        proxy.meanwhile("put_checkpoint", lose, at=13),
        proxy.meanwhile("put_checkpoint", lose, at=17),
    ):
        await far.acopy_thread("t", "u")
    found = [each async for each in saver.alist(config_of("u"))]
    copied = [each for each in found if each.checkpoint["id"] in wanted]
    assert len(copied) >= 5
    for each in copied:
        assert each.checkpoint == wanted[each.checkpoint["id"]].checkpoint


async def with_deltas(saver: RedisSaver) -> list[Any]:
    """Put 40 checkpoints with a delta channel that has three snapshots; return their configs."""
    config, configs = config_of("t"), list[Any]()
    for number in range(40):
        checkpoint, version = empty_checkpoint(), saver.get_next_version(None, None)
        about: Any = {"run_id": "r"}
        if number in (0, 15, 39):
            checkpoint["channel_values"] = {"log": [number]}
        else:
            about["counters_since_delta_snapshot"] = {"log": 1}
        checkpoint["channel_versions"] = {"log": version}
        config = await saver.aput(config, checkpoint, about, checkpoint["channel_versions"])
        await saver.aput_writes(config, [("log", [f"{number}"])], "task")
        configs.append(config)
    return configs


async def test_between_two_steps_of_a_pruning_each_checkpoint_has_its_delta_history(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash leaves what is there then, and what is forked then stays whole."""
    saver = RedisSaver(store)
    configs = await with_deltas(saver)
    ids = [config["configurable"]["checkpoint_id"] for config in configs]

    async def history(config: Any) -> Any:
        return await saver.aget_delta_channel_history(config=config, channels=["log"])

    wanted = [await history(config) for config in configs]
    monkeypatch.setattr("redis_state.integrations.langgraph.threads.pruning._STEP", 10)
    drop, steps, fork = Threads.drop, 0, list[Any]()

    async def drop_and_look(self: Threads, *args: Any, **more: Any) -> Any:
        nonlocal steps
        done = await drop(self, *args, **more)
        steps += 1
        async for each in saver.alist(config_of("t")):
            at = each.checkpoint["id"]
            if at in ids and "log" not in each.checkpoint["channel_values"]:
                assert await history(each.config) == wanted[ids.index(at)], ids.index(at)
        if steps == 1:
            about: Any = {"counters_since_delta_snapshot": {"log": 1}}
            fork.append(await saver.aput(configs[25], empty_checkpoint(), about, {}))
            fork.append(await history(fork[0]))
        return done

    monkeypatch.setattr(Threads, "drop", drop_and_look)
    await saver.aprune(["t"])
    assert steps >= 3
    assert await history(fork[0]) == fork[1]
    assert fork[1]["log"]["seed"] == [15]
    left = {each.checkpoint["id"] async for each in saver.alist(config_of("t"))}
    assert left & {*ids} == {*ids[15:26], ids[39]}


@pytest.mark.parametrize("by", ["pruning", "run"])
@pytest.mark.parametrize("again", [1, 15, 30])
async def test_what_is_put_again_meanwhile_stays_in_whichever_step_it_is(
    store: RedisStateStore,
    proxy: CommandProxy,
    far: RedisSaver,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by: str,
    again: int,
) -> None:
    saver = RedisSaver(store)
    ids = await grown(saver, 40, run="r")
    found = await saver.aget_tuple(config_of("t", checkpoint_id=ids[again]))
    assert found is not None
    monkeypatch.setattr("redis_state.integrations.langgraph.threads.pruning._STEP", 10)

    async def put_again() -> None:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        versions = found.checkpoint["channel_versions"]
        await saver.aput(config, found.checkpoint, found.metadata, versions)

    with proxy.meanwhile("drop_checkpoints", put_again):
        await (far.aprune(["t"]) if by == "pruning" else far.adelete_for_runs(["r"]))
    left = [each async for each in saver.alist(config_of("t"))]
    assert [each.checkpoint["id"] for each in left] == [
        *(ids[-1:] if by == "pruning" else []),
        ids[again],
    ]
    assert left[-1].checkpoint == found.checkpoint


async def test_nothing_of_a_deleted_thread_stays_in_memory(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    newest = saver._threads.newest
    for delete in (
        saver.adelete_thread("t"),
        saver.adelete_for_runs(["r"]),
        saver.aprune(["t"], strategy="delete"),
    ):
        await grown(saver, 5, run="r")
        assert newest.of("t", "%:", "text")
        await delete
        assert not newest.of("t", "%:", "text")
    # One that another process has deleted, and one that is closed.
    await grown(saver, 5, run="r")
    await RedisSaver(store).adelete_thread("t")
    assert await saver.aget_tuple(config_of("t")) is None
    assert not newest.of("t", "%:", "text")
    await grown(saver, 5, run="r")
    await saver.aclose()
    assert not newest.of("t", "%:", "text")


async def test_what_is_not_used_is_forgotten_in_time() -> None:
    newest = Newest(kept_s=0.2)

    def add(channel: str) -> None:
        value = StoredValue(b"n", b"s", "msgpack", b"d" * 600, 0)
        newest.add("t", "%:", {channel: value})

    add("a")
    await asyncio.sleep(0)
    add("b")
    assert newest.of("t", "%:", "b")
    await eventually(lambda: not newest.held_bytes, "both are forgotten")
    assert not newest.of("t", "%:", "b")
    add("c")
    assert newest.held_bytes == 601
    await eventually(lambda: not newest.held_bytes, "it is forgotten too")
