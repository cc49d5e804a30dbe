"""A server that refuses a record hands the task back, whatever the SDK makes of the error."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from agents import CustomTool, Runner, function_tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseCustomToolCall

from redis_state import RedisStateStore
from redis_state.errors import StoreFull
from redis_state.integrations.openai_agents import durable
from redis_state.models import TaskStatus
from redis_state.worker import TaskContext
from redis_state.worker.tasks.recorded.journal import Journals
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted
from tests.support.tasks.runs import run_to_the_end

pytestmark = pytest.mark.worker


@pytest.mark.parametrize("where", ["function", "custom", "agent"])
async def test_a_task_whose_tool_could_not_be_recorded_is_handed_back(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    refused: Counter[str] = Counter()
    record = Journals.record_step

    async def refusing(journals: Journals, keys: Any, entry: str, *given: Any, **more: Any) -> Any:
        if entry.startswith("step:look") and not refused:
            refused[entry] += 1
            raise StoreFull(entry)
        return await record(journals, keys, entry, *given, **more)

    monkeypatch.setattr(Journals, "record_step", refusing)

    @function_tool
    def look() -> str:
        return "seen"

    async def custom(_: ToolContext[Any], __: str) -> str:
        return "seen"

    tools: list[Any] = [look]
    made: Any = call("look")
    if where == "custom":
        made = ResponseCustomToolCall(
            call_id="look", input="", name="look", type="custom_tool_call"
        )
        tools = [CustomTool(name="look", description="", on_invoke_tool=custom)]

    def turn(items: list[dict[str, Any]]) -> Any:
        return "done" if any(item.get("output") == "seen" for item in items) else [made]

    inner = scripted(turn)
    agent = agent_of(inner, tools=tools)
    outer = scripted([call("ask", {"input": "look"})], lambda items: str(items[-1]["output"]))
    if where == "agent":
        agent = agent_of(outer, "outer", tools=[agent.as_tool("ask", None)])

    async def handler(_: TaskContext) -> Any:
        return (await Runner.run(agent, "go", run_config=QUIET)).final_output

    state = await run_to_the_end(store, durable(handler))
    assert sum(refused.values()) == 1
    assert (state.status, state.error, state.result) == (TaskStatus.COMPLETE, None, "done")
    # Nothing was asked about what the SDK has made of the refusal.
    assert len(inner.seen) == 2
    assert outer.seen == ([0, 1] if where == "agent" else [])
