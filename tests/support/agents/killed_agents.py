"""An agent of any framework, with four tools, whose workers are killed at given points."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved
from redis_state.models import TaskStatus, UpdateType
from redis_state.worker import TextReader
from tests.chaos.support.crew import recorded
from tests.support.processes.pools import SESSION, becomes, client_of, updates_of
from tests.support.processes.worker_processes import stop, worker_process


async def check_killed_agent(
    store: RedisStateStore,
    folder: Path,
    *,
    program: str,
    said: str,
    before: tuple[str, ...],
    after: tuple[str, ...],
) -> None:
    """Check that only what was in flight is done again, and that each approval has one winner.

    ``program`` runs the agent. It is killed at the points ``before`` its approvals, while it is
    paused, and ``after`` them. ``said`` is its last answer.
    """
    options: dict[str, Any] = {
        "program": program,
        "folder": str(folder),
        "lease_s": 0.5,
        "points": [*before, *after],
    }
    async with client_of(store) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        for number, _ in enumerate(before):
            await _killed(store, options, f"w{number}")
        async with worker_process(store.settings, "pauses", **options) as process:
            await becomes(client, task, TaskStatus.PAUSED)
            assert await stop(process, signal.SIGKILL) == -signal.SIGKILL
        pauses = [pause.tags[0] for pause in await client.pauses(SESSION)]
        assert sorted(pauses) == ["a", "b"]
        for pause in (await client.pauses(SESSION))[::-1]:
            decisions = await asyncio.gather(
                client.approve(str(pause.pause_id), actor="ann"),
                client.approve(str(pause.pause_id), actor="bob"),
                return_exceptions=True,
            )
            (lost,) = [each for each in decisions if isinstance(each, Exception)]
            assert isinstance(lost, TokenResolved)
        for point in after:
            await _killed(store, options, f"dies at {point}".replace(" ", "-"))
        async with worker_process(store.settings, "last", **options):
            assert await client.result(SESSION, task, timeout_s=60) == said
    done = Counter(tuple(fact) for fact in recorded(folder, "clerk"))
    effects = {fact[2] for fact in done if fact[0] == "pay"}
    assert len(effects) == 2
    assert {(fact[:2]): count for fact, count in done.items()} == {
        ("request", 0): 1 + ("request 0" in before),
        ("request", 1): 1,
        ("request", 2): 1 + ("request 2" in after),
        ("look",): 1,
        ("buy",): 2,
        ("pay", "a"): 1,
        ("pay", "b"): 1 + ("pay b" in after),
    }
    texts, updates = TextReader(), await updates_of(store, task)
    for update in updates:
        texts.feed(update)
    assert [text.text for text in texts.texts.values()] == [said]
    tools = Counter(
        (each.content["tool_call_id"], "result" in each.content)
        for each in updates
        if each.update_type is UpdateType.TOOL_CALL
    )
    assert tools == {(each, ends): 1 for each in ("look", "buy", "a", "b") for ends in (0, 1)}


async def _killed(store: RedisStateStore, options: dict[str, Any], name: str) -> None:
    """Run a worker until it has killed itself."""
    async with worker_process(store.settings, name, **options) as process, asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL
