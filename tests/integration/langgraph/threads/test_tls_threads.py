"""Threads of LangGraph over TLS, by many callers, on links that die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.store.base import GetOp, PutOp

from redis_state import Settings
from redis_state.integrations.langgraph import RedisSaver, RedisStore
from tests.support.payloads import KEYS
from tests.support.servers.proxies.dying_links import over_tls, while_links_die

CALLERS, STEPS = 40, 6


async def call(saver: RedisSaver, items: RedisStore, number: int) -> None:
    thread = f"t {number} {{}}*:%\u00e9"
    whole: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "a:{b}|"}}
    config = whole
    versions: dict[str, Any] = {"log": None}
    for step in range(STEPS):
        versions = {"log": saver.get_next_version(versions["log"], None)}
        values = {"log": [f"{number}/{step}", "x" * 3_000]}
        checkpoint: Any = {**empty_checkpoint(), "channel_values": values}
        checkpoint["channel_versions"] = versions
        config = await saver.aput(config, checkpoint, {"step": step}, versions)
        await saver.aput_writes(config, [("log", [number, step])], task_id=f"task-{step}")
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert [write[2] for write in found.pending_writes or ()] == [[number, step]]
        await items.abatch([PutOp(("n", str(number)), f"k{step}", {"step": [number, step]})])
    listed = [each async for each in saver.alist(whole)]
    assert [each.metadata.get("step") for each in listed] == list(reversed(range(STEPS)))
    last = await items.abatch([GetOp(("n", str(number)), f"k{STEPS - 1}")])
    assert getattr(last[0], "value", None) == {"step": [number, STEPS - 1]}


async def test_40_callers_get_their_own_threads_though_their_links_die(
    settings: Settings, tmp_path: Path
) -> None:
    sealed = {"payload_keys": SecretStr(KEYS[0])}
    async with over_tls(settings, tmp_path, dribbled=700, **sealed) as (store, proxy):
        saver, items = RedisSaver(store), RedisStore(store)
        callers = [asyncio.create_task(call(saver, items, n)) for n in range(CALLERS)]
        await while_links_die(proxy, callers)
