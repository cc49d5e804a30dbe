"""Threads of a server whose history went back, for savers that have seen what is gone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from redis_state import RedisStateStore
from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import OpenPause
from tests.support.agents.graphs import asking, config_of, counting
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.servers.changes.rollback import rolling_back

pytestmark = pytest.mark.chaos


async def test_a_value_that_continues_one_that_is_gone_is_whole() -> None:
    async with rolling_back() as redis, RedisStateStore.from_url(redis.url) as store:
        saver, thread = RedisSaver(store), config_of("t")
        graph = counting(saver)
        kept = await graph.ainvoke({"log": ["kept"]}, thread)
        await redis.mark()
        await graph.ainvoke({"log": ["gone"]}, thread)
        gone: Any = await saver.aget_tuple(thread)
        await redis.go_back()
        assert (await graph.aget_state(thread)).values == kept
        later: Any = {**gone.checkpoint, "id": empty_checkpoint()["id"]}
        versions: dict[str, Any] = gone.checkpoint["channel_versions"]
        version = saver.get_next_version(versions["log"], None)
        before: dict[str, Any] = gone.checkpoint["channel_values"]
        values = {**before, "log": [*before["log"], "new"]}
        later |= {"channel_values": values, "channel_versions": {**versions, "log": version}}
        await saver.aput(gone.config, later, {"source": "loop", "step": 9}, {"log": version})
        async with RedisStateStore.from_url(redis.url) as second:
            found: Any = await RedisSaver(second).aget_tuple(thread)
        assert found.checkpoint["channel_values"] == values


async def test_a_graph_whose_answer_is_gone_is_asked_again() -> None:
    done: list[Any] = []
    handler = graph_handler(lambda saver: asking(saver, done.append, "pay?"))
    async with (
        rolling_back() as redis,
        RedisStateStore.from_url(redis.url) as store,
        pool(store, {"g": handler}) as client,
    ):
        task = await client.submit("g", {"log": []}, session_id=SESSION)

        async def asked() -> OpenPause | None:
            return next(iter(await client.pauses(SESSION)), None)

        for answer in ("gone", "kept"):
            pause = await eventually(asked, "it asks")
            assert pause is not None
            await becomes(client, task, TaskStatus.PAUSED)
            if answer == "gone":
                await redis.mark()
            await client.resolve(pause.pause_id or "", approved=True, value=answer, actor="ann")
            assert (await client.result(SESSION, task))["log"] == [f"pay? {answer}"]
            if answer == "gone":
                await redis.go_back()
        assert done == [("pay?", "gone"), ("pay?", "kept")]
