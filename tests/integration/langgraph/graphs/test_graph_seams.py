"""40 graphs at once in one worker over TLS, with agents in their nodes: each sees its own task."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")
pytest.importorskip("langgraph")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from langgraph.graph import START, StateGraph

from redis_state import RedisStateStore, Settings
from redis_state.integrations.langgraph import current_task, graph_handler
from redis_state.worker import StepPolicy
from tests.support.agents import pydantic_ai as host
from tests.support.agents.graphs import Log
from tests.support.processes.pools import pool
from tests.support.servers.faults import Proxy, certificate, tls_server_context

GRAPHS = 40


async def test_40_graphs_with_agents_in_one_worker_over_tls_keep_their_tasks_apart(
    settings: Settings, tmp_path: Path
) -> None:
    # Each node and each tool waits until all graphs are there.
    in_node, in_tool = asyncio.Barrier(GRAPHS), asyncio.Barrier(GRAPHS)
    effects: list[str] = []
    agent = host.durable_agent(host.scripted([host.call("pay"), host.call("look")], "done"))

    @agent.tool_plain
    async def pay() -> str:
        async with asyncio.timeout(60):
            await in_tool.wait()
        effects.append(current_task().effect_id("pay"))
        return current_task().task.session_id

    @agent.tool_plain
    def look() -> str:  # in a thread
        return current_task().task.session_id

    def begin(_: Log) -> Log:  # in a thread
        effects.append(current_task().effect_id("begin"))
        return {"log": [current_task().task.session_id, current_task().input["log"][0]]}

    async def call(_: Log) -> Log:
        async with asyncio.timeout(60):
            await in_node.wait()
        own = current_task().task.session_id
        result = await agent.run("go")
        returned = host.returns(result.all_messages())
        step = await current_task().step("step", lambda: current_task().task.session_id)
        return {"log": [own, returned["pay"], returned["look"], step]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_sequence([begin, call])
        graph.add_edge(START, "begin")
        return graph.compile(checkpointer=saver)

    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        url = SecretStr(f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}")
        over_tls = settings.model_copy(update={"url": url})
        async with RedisStateStore(over_tls) as store:
            steps = StepPolicy(on_changed="fail")
            handler = graph_handler(build, stream_mode=["updates", "messages"])
            async with pool(store, {"g": handler}, steps=steps, max_tasks=GRAPHS) as client:

                async def run(session: str) -> list[str]:
                    task = await client.submit("g", {"log": [session]}, session_id=session)
                    result = await client.result(session, task, timeout_s=90)
                    rows = await store.list_updates(session)
                    assert {row.task_id for row in rows} == {task}
                    return list(result["log"])

                sessions = [f"s{number}" for number in range(GRAPHS)]
                found = await asyncio.gather(*map(run, sessions))
    # Of the input, the two nodes, the two tools and the step.
    assert found == [[session] * 7 for session in sessions]
    assert len(effects) == len(set(effects)) == 2 * GRAPHS
