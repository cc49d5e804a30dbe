"""An agent of the OpenAI Agents SDK whose workers are killed again and again."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved
from redis_state.integrations.openai_agents import RedisStateSession
from redis_state.models import TaskStatus, UpdateType
from redis_state.worker import TextReader
from tests.chaos.support.crew import recorded
from tests.processes.workers.killed.openai_worker import AFTER_PAUSES, BEFORE_PAUSES
from tests.support.processes.pools import SESSION, becomes, client_of, updates_of
from tests.support.processes.worker_processes import stop, worker_process

pytestmark = pytest.mark.worker


async def killed(store: RedisStateStore, options: dict[str, Any], name: str) -> None:
    """Run a worker until it has killed itself."""
    async with worker_process(store.settings, name, **options) as process, asyncio.timeout(60):
        assert await process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("buy",), ()),
        pytest.param(BEFORE_PAUSES, AFTER_PAUSES, marks=pytest.mark.full),
    ],
)
async def test_what_was_in_flight_when_a_worker_was_killed_is_all_that_is_done_again(
    store: RedisStateStore, tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {
        "program": "openai_worker",
        "folder": str(tmp_path),
        "lease_s": 0.5,
        "points": [*before, *after],
    }
    async with client_of(store) as client:
        task = await client.submit("clerk", "go", session_id=SESSION)
        for number, _ in enumerate(before):
            await killed(store, options, f"w{number}")
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
            await killed(store, options, f"dies at {point}".replace(" ", "-"))
        async with worker_process(store.settings, "last", **options):
            assert await client.result(SESSION, task, timeout_s=60) == "all is paid"
    done = Counter(tuple(fact) for fact in recorded(tmp_path, "clerk"))
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
    assert [text.text for text in texts.texts.values()] == ["all is paid"]
    tools = Counter(
        (each.content["tool_call_id"], "result" in each.content)
        for each in updates
        if each.update_type is UpdateType.TOOL_CALL
    )
    assert tools == {(each, ends): 1 for each in ("look", "buy", "a", "b") for ends in (0, 1)}
    items: Any = await RedisStateSession(SESSION, store=store).get_items()
    kinds = Counter(item.get("type", item.get("role")) for item in items)
    assert kinds == {"user": 1, "function_call": 4, "function_call_output": 4, "message": 1}
