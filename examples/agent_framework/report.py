"""A report in three steps, each of which is a checkpoint. Run it, or continue it, in this process.

python -m examples.agent_framework.report <url> begin|continue
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

from redis_state import RedisStateStore
from redis_state.integrations.agent_framework import RedisStateCheckpointStorage

framework: Any = import_module("agent_framework")
NAME = "report"


def workflow_of(storage: Any, *, stays: bool) -> Any:
    """Make the workflow; with ``stays`` the second step never ends."""

    async def collect(topic: str, ctx: Any) -> None:
        print(f"collected {topic}", flush=True)
        await ctx.send_message(f"facts of {topic}")

    async def write(facts: str, ctx: Any) -> None:
        print("writing", flush=True)
        if stays:
            await asyncio.Event().wait()
        await ctx.send_message(f"report with {facts}")

    async def publish(report: str, ctx: Any) -> None:
        await ctx.yield_output(f"published {report}")

    # Agent Framework reads them. Its package is not where types are checked.
    for each in (collect, write):
        each.__annotations__["ctx"] = framework.WorkflowContext[str]
    publish.__annotations__["ctx"] = framework.WorkflowContext[Any, str]
    made = framework.FunctionExecutor
    first = made(collect, id="collect", input=str, output=str)
    second = made(write, id="write", input=str, output=str)
    third = made(publish, id="publish", input=str, workflow_output=str)
    builder = framework.WorkflowBuilder(
        name=NAME, start_executor=first, checkpoint_storage=storage, output_from=[third]
    )
    return builder.add_edge(first, second).add_edge(second, third).build()


async def main(url: str, what: str) -> None:
    """Begin the report and stay in its second step, or continue it from its newest checkpoint."""
    async with RedisStateStore.from_url(url) as store:
        storage: Any = RedisStateCheckpointStorage(store)
        if what == "begin":
            await workflow_of(storage, stays=True).run("tides")
        latest = await storage.get_latest(workflow_name=NAME)
        ran = await workflow_of(storage, stays=False).run(checkpoint_id=latest.checkpoint_id)
        print(*ran.get_outputs(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
