"""Agents and sessions of the OpenAI Agents SDK whose workers are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import Runner

from redis_state import RedisStateStore
from redis_state.integrations.openai_agents import RedisStateSession
from tests.processes.workers.killed.openai_worker import AFTER_PAUSES, BEFORE_PAUSES
from tests.support.agents.killed_agents import check_killed_agent
from tests.support.agents.openai_agents import QUIET, agent_of, scripted
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.processes.pools import SESSION, client_of
from tests.support.processes.worker_processes import worker_process
from tests.support.servers.faults import start_process

pytestmark = pytest.mark.worker


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
    await check_killed_agent(
        store, tmp_path, program="openai_worker", said="all is paid", before=before, after=after
    )
    items: Any = await RedisStateSession(SESSION, store=store).get_items()
    kinds = Counter(item.get("type", item.get("role")) for item in items)
    assert kinds == {"user": 1, "function_call": 4, "function_call_output": 4, "message": 1}


@pytest.mark.parametrize("meanwhile", ["added", "cleared"])
async def test_a_task_that_was_killed_behind_its_clearing_does_not_clear_again(
    store: RedisStateStore, tmp_path: Path, meanwhile: str
) -> None:
    options: dict[str, Any] = {
        "program": "clearing_worker",
        "folder": str(tmp_path),
        "lease_s": 0.5,
    }
    session = RedisStateSession(SESSION, store=store)
    await session.add_items([{"role": "user", "content": "old"}])
    async with client_of(store) as client:
        task = await client.submit("clerk", session_id=SESSION)
        async with worker_process(store.settings, "dies", **options) as process:
            assert await process.wait() == -signal.SIGKILL
        assert [item["content"] for item in await session.get_items()] == ["new"]  # type: ignore[typeddict-item]
        if meanwhile == "cleared":
            await session.clear_session()
        await session.add_items([{"role": "user", "content": "between"}])
        async with worker_process(store.settings, "last", **options):
            await client.result(SESSION, task, timeout_s=60)
    stands = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
    assert stands == (["between"] if meanwhile == "cleared" else ["new", "between"])


async def test_a_session_goes_on_behind_a_process_that_is_killed_and_one_that_stands_still(
    store: RedisStateStore,
) -> None:
    async with AsyncExitStack() as stack:

        async def begun(name: str) -> ForkedProcess:
            argument = {
                "url": store.settings.url.get_secret_value(),
                "namespace": store.settings.namespace,
                "name": name,
                "lease_s": 1.0,
            }
            process = await start_process("openai_session_run", argument, stdin=True)
            stack.push_async_callback(children.end, process)
            assert await said(process) == "asks"
            return process

        async def said(process: ForkedProcess) -> str:
            async with asyncio.timeout(60):
                return (await process.stdout.readline()).decode().strip()

        killed = await begun("a")
        assert await said(killed) == "in"
        stopped = await begun("b")
        entering = asyncio.create_task(said(stopped))
        done, _ = await asyncio.wait({entering}, timeout=0.3)
        assert not done
        killed.kill()
        assert await entering == "in"
        stopped.send_signal(signal.SIGSTOP)
        session = RedisStateSession("s", store=store)
        agent = agent_of(scripted("answer to c"))
        await Runner.run(agent, "c", session=session, run_config=QUIET)
        stopped.send_signal(signal.SIGCONT)
        assert stopped.stdin is not None
        stopped.stdin.write(b"\n")
        assert await said(stopped) == "refused"
    items: Any = await session.get_items()
    said_last = items[-1]["content"][0]["text"]
    assert (items[-2]["content"], said_last) == ("c", "answer to c")
    assert [item for item in items if item.get("type") == "message"] == items[-1:]
