"""Turns with numbers in them, a summarizer that loses none, and what became of each turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state import BackendUnavailable, RedisStateStore
from redis_state.memory import (
    ConversationTurn,
    MemoryBudget,
    MemoryKey,
    SessionMemory,
    ShortTermMemoryConfig,
    TrajectoryDigest,
)
from redis_state.testing import eventually

KEY = MemoryKey("acme", "ana", "s-1")


def turn(name: object, **more: Any) -> ConversationTurn:
    """Make a turn of a name."""
    return ConversationTurn(user_message=str(name), assistant_response="yes", **more)


def full_turn(name: object) -> ConversationTurn:
    """Make a turn with something in every field."""
    digest = TrajectoryDigest(["search"], "- search: 3 found", "because", ["a-1"])
    return turn(name, trajectory_digest=digest, artifacts_shown={"a": {"b": [1]}}, ts=12.5)


class Summarizer:
    """Append the names of the turns to the summary; fail, wait or count as told."""

    def __init__(self) -> None:
        self.requested: list[list[str]] = []
        self.failures = 0
        self.gate: asyncio.Event | None = None

    async def __call__(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Summarise."""
        names = [turn["user"] for turn in payload["turns"]]
        self.requested.append(names)
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a secret the model was told")
        return {"summary": " ".join([payload["previous_summary"], *names]).strip()}


def config(**more: Any) -> ShortTermMemoryConfig:
    """Make a configuration without a limit but for the turns kept in full."""
    budget: dict[str, Any] = {"full_zone_turns": 2, "summary_max_tokens": 10**6}
    budget |= {"total_max_tokens": 0} | more.pop("budget", {})
    fields: dict[str, Any] = {
        "strategy": "rolling_summary",
        "retry_backoff_base_s": 0.0,
        "recovery_backlog_limit": 10**6,
        **more,
    }
    return ShortTermMemoryConfig(budget=MemoryBudget(**budget), **fields)


def memory_of(
    store: Any, key: MemoryKey | str = KEY, *, summarizer: Any = None, **more: Any
) -> SessionMemory:
    """Make a session's memory."""
    return SessionMemory(store, key, config=config(**more), summarizer=summarizer or Summarizer())


def names_in(document: Mapping[str, Any]) -> list[str]:
    """List the turns of a memory as they came: summarised, put back, waiting and in full."""
    lists: Sequence[Sequence[Mapping[str, Any]]] = [
        document[part] for part in ("backlog", "pending", "turns")
    ]
    return [
        *document["summary"].split(),
        *(turn["user_message"] for turns in lists for turn in turns),
    ]


async def stored(store: RedisStateStore, key: MemoryKey = KEY) -> dict[str, Any]:
    """Return the document of a session."""
    document = await store.load_memory_state(key.composite())
    assert document is not None
    return document


async def until_saved(memory: SessionMemory) -> None:
    """Save as soon as the server can be reached again, however busy the machine is."""

    async def saved() -> bool:
        with contextlib.suppress(BackendUnavailable):
            await memory.persist()
        return memory.unsaved == 0

    await eventually(saved, "what waited is saved")
