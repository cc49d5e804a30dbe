"""Savers of LangGraph, ours and the peers': REDIS_STATE_BENCH_SAVER names the one.

Imports nothing of the store unless it is ours: the others have their own environment.
"""

from __future__ import annotations

import importlib
import operator
import os
import random
import uuid
from typing import Annotated, Any, TypedDict

from benchmarks.measure import Operation

THREADS = 32
STEPS = 100
LISTED = 10
# A conversation that grows, beside documents that stay.
_WORDS = [f"{n:x}"[::-1] + "aeiou"[n % 5] for n in range(4096)]
_random = random.Random(7)
_held: list[Any] = []


def _text(length: int) -> str:
    """Write words: PostgreSQL compresses text, and RedisJSON keeps equal texts once."""
    return " ".join(_random.choices(_WORDS, k=length // 4))[:length]


def _message() -> dict[str, Any]:
    return {"role": "user", "content": _text(120)}


def _documents() -> list[str]:
    return [_text(1000) for _ in range(8)]


class Talk(TypedDict):
    """The state of the graph that is run for the bytes: a growing list, and what stays."""

    messages: Annotated[list[dict[str, Any]], operator.add]
    documents: list[str]


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations of a saver."""
    saver = await _opened(os.environ["REDIS_STATE_BENCH_SAVER"], url)
    base: Any = importlib.import_module("langgraph.checkpoint.base")
    messages, documents = [_message() for _ in range(256)], _documents()
    last: dict[int, tuple[Any, dict[str, Any]]] = {}

    def thread(number: int) -> Any:
        return {"configurable": {"thread_id": f"thread-{number}", "checkpoint_ns": ""}}

    async def put(number: int) -> None:
        place = number % THREADS
        config, versions = last.get(place, (thread(place), {}))
        checkpoint = base.empty_checkpoint()
        versions = {
            **versions,
            "messages": saver.get_next_version(versions.get("messages"), None),
        }
        versions.setdefault("documents", versions["messages"])
        checkpoint["channel_values"] = {
            "messages": messages[number % 230 :][:20],
            "documents": documents,
        }
        checkpoint["channel_versions"] = versions
        new = versions if place not in last else {"messages": versions["messages"]}
        about: dict[str, Any] = {"source": "loop", "step": number, "parents": {}}
        last[place] = await saver.aput(config, checkpoint, about, new), versions

    async def get(number: int) -> None:
        if await saver.aget_tuple(thread(number % THREADS)) is None:
            raise LookupError("nothing was put before")

    async def list_(number: int) -> None:
        found = [each async for each in saver.alist(thread(number % THREADS), limit=LISTED)]
        if not found:
            raise LookupError("nothing was put before")

    graph = _graph(saver)

    async def run(number: int) -> None:
        del number
        config = {
            "configurable": {"thread_id": f"talk-{uuid.uuid4()}"},
            "recursion_limit": STEPS + 10,
        }
        await graph.ainvoke({"messages": [_message()], "documents": _documents()}, config)

    return {"save": put, "put": put, "get": get, "list": list_, "run": run}


def _graph(saver: Any) -> Any:
    graphs: Any = importlib.import_module("langgraph.graph")

    def step(_: Talk) -> Any:
        return {"messages": [_message()]}

    def more(state: Talk) -> str:
        # One checkpoint is the input's.
        return "step" if len(state["messages"]) < STEPS - 1 else "__end__"

    graph = graphs.StateGraph(Talk)
    graph.add_node("step", step)
    graph.add_edge("__start__", "step")
    graph.add_conditional_edges("step", more)
    return graph.compile(checkpointer=saver)


async def _opened(name: str, url: str) -> Any:
    if name == "ours":
        ours: Any = importlib.import_module("redis_state.integrations.langgraph")
        return ours.RedisSaver.from_url(url, namespace="graphs")
    if name == "redis":
        redis: Any = importlib.import_module("langgraph.checkpoint.redis.aio")
        # Its default of 100 connections overflows at 64 concurrent reads.
        saver = redis.AsyncRedisSaver(redis_url=url, connection_args={"max_connections": 1000})
        await saver.asetup()
        return saver
    if name == "aws":
        aws: Any = importlib.import_module("langgraph_checkpoint_aws")
        valkey = url.replace("redis://", "valkey://")
        opened = aws.AsyncValkeySaver.from_conn_string(valkey, pool_size=100)
        # It closes its pool when it is collected.
        _held.append(opened)
        return await opened.__aenter__()
    rows: Any = importlib.import_module("psycopg.rows")
    pools: Any = importlib.import_module("psycopg_pool")
    postgres: Any = importlib.import_module("langgraph.checkpoint.postgres.aio")
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows.dict_row}
    pool = pools.AsyncConnectionPool(url, min_size=16, max_size=16, kwargs=options, open=False)
    await pool.open()
    saver = postgres.AsyncPostgresSaver(pool)
    await saver.setup()
    return saver
