"""What a get and a list of RedisSaver cost beside their calls."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import aclosing
from typing import Any, cast

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_state import RedisStateStore
from redis_state.integrations.langgraph import RedisSaver
from redis_state.integrations.loop_thread import LoopThread
from tests.support.agents.graphs import config_of


class Unreadable(JsonPlusSerializer):
    """A serializer that writes, and reads nothing."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Errors: ValueError."""
        raise ValueError("not here")


async def put(saver: RedisSaver, config: Any) -> Any:
    """Put a checkpoint without values."""
    return await saver.aput(config, empty_checkpoint(), {"source": "loop", "step": 1}, {})


async def listed(saver: RedisSaver, config: Any, **options: Any) -> list[Any]:
    """List checkpoints."""
    return [found async for found in saver.alist(config, **options)]


async def grown(saver: RedisSaver, namespace: str = "") -> Any:
    """Put seven checkpoints into the thread ``t``; return the config of the last."""
    config: Any = config_of("t", checkpoint_ns=namespace)
    for _ in range(7):
        config = await put(saver, config)
    return config


@pytest.mark.parametrize("limit", [None, 0, 1, 3, 9])
async def test_callers_that_block_list_the_same(store: RedisStateStore, limit: int | None) -> None:
    saver = RedisSaver(store)
    await grown(saver)
    for thread in (config_of("t"), config_of("t", checkpoint_ns=""), None):
        found = [each.config for each in await listed(saver, thread, limit=limit)]
        assert [each.config for each in saver.list(thread, limit=limit)] == found
        assert len(found) == min(7 if limit is None else limit, 7)


async def test_callers_that_block_change_their_thread_once_a_page(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, runs = RedisSaver(store), 0
    await grown(saver)
    run = LoopThread.run

    def counted(self: LoopThread, work: Any) -> Any:
        nonlocal runs
        runs += 1
        return run(self, work)

    monkeypatch.setattr(LoopThread, "run", counted)
    assert len(list(saver.list(config_of("t", checkpoint_ns=""), limit=5))) == 5
    assert runs == 1
    # Pages of 1, 4 and 2. The last one says that it is the last.
    assert len(list(saver.list(config_of("t", checkpoint_ns="")))) == 7
    assert runs == 4


async def test_a_list_of_a_namespace_needs_no_generator(store: RedisStateStore) -> None:
    """The loop keeps a record of each one that was begun."""
    saver = RedisSaver(store)
    await grown(saver)
    hooks, begun = sys.get_asyncgen_hooks(), list[Any]()
    sys.set_asyncgen_hooks(firstiter=begun.append)
    try:
        assert len(await listed(saver, config_of("t", checkpoint_ns=""))) == 7
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert begun == []


async def test_two_tasks_do_not_get_the_same_page(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await grown(saver)
    one = saver.alist(config_of("t", checkpoint_ns=""), limit=3)
    both: list[Any] = [asyncio.ensure_future(anext(one)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="another task"):
        await both[1]
    found = [await both[0], *[each async for each in one]]
    assert len({each.checkpoint["id"] for each in found}) == 3


async def test_reading_leaves_no_generator_behind(store: RedisStateStore) -> None:
    """Each one that is left costs the loop a task, and a call of the system."""
    saver = RedisSaver(store)
    config = [await grown(saver, namespace) for namespace in ("", "n")][1]
    hooks, left = sys.get_asyncgen_hooks(), list[Any]()
    sys.set_asyncgen_hooks(finalizer=left.append)
    try:
        assert await saver.aget_tuple(config_of("t", checkpoint_ns="")) is not None
        for wanted in (None, {"step": 1}):
            for thread in (config_of("t"), config_of("t", checkpoint_ns=""), config, None):
                assert await listed(saver, thread, limit=1, filter=wanted)
                async with aclosing(cast("Any", saver.alist(thread, filter=wanted))) as begun:
                    await anext(begun)
        unread = RedisSaver(store, serde=Unreadable()).alist(None)
        with pytest.raises(ValueError, match="not here"):
            await anext(unread)
        assert await anext(unread, None) is None
        gc.collect()
        assert left == []
    finally:
        sys.set_asyncgen_hooks(*hooks)
