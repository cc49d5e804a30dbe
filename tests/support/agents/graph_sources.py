"""Savers that an import reads from, as `redis-state langgraph --from` finds them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from tests.support.agents.graphs import adding_deltas, asking, config_of, counting

LONG = 600

made: dict[str, BaseCheckpointSaver[Any]] = {}


def given() -> BaseCheckpointSaver[Any]:
    """Return the saver that the test has put there."""
    return made["given"]


def nothing() -> object:
    """Return what is no saver."""
    return object()


async def fill(saver: Any) -> list[str]:
    """Run graphs: a loop, one that waits for two answers, one with delta channels."""
    await counting(saver, steps=12).ainvoke({"log": ["start"]}, config_of("loop"))
    await asking(saver, lambda _: None, "pay", "ship").ainvoke({"log": ["s"]}, config_of("asks"))
    await adding_deltas(saver, steps=13).ainvoke({"n": 0, "log": []}, config_of("deltas"))
    return ["asks", "deltas", "loop"]


async def put(saver: Any, thread: str, n: int, *, namespace: str = "", **values: Any) -> Any:
    """Put a checkpoint whose id is a number, behind the one of the number before."""
    checkpoint = empty_checkpoint()
    checkpoint |= {"id": f"{n:08}", "ts": "2026-01-01T00:00:00+00:00"}
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, f"{n:08}.0")
    before = {"checkpoint_id": f"{n - 1:08}"} if n else {}
    return await saver.aput(
        config_of(thread, checkpoint_ns=namespace, **before),
        checkpoint,
        {"source": "loop", "step": n},
        checkpoint["channel_versions"],
    )


@asynccontextmanager
async def long() -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    """Open a saver with one long thread, the same in each process."""
    saver = InMemorySaver()
    for n in range(LONG):
        await put(saver, "long", n, number=n)
    yield saver
