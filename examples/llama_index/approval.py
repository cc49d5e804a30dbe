"""A workflow that asks a person, and a server of it.

python -m examples.llama_index.approval <url> ask|answer <handler>
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

from redis_state import RedisStateStore
from redis_state.integrations.llama_index import RedisStateWorkflowStore

workflows: Any = import_module("workflows")
events: Any = import_module("workflows.events")
server: Any = import_module("llama_agents.server")


class Decided(events.HumanResponseEvent):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """What a person decides."""

    decision: str


async def ask(ctx: Any, ev: Any) -> Any:
    """Ask, and note in the run's state what was asked for."""
    del ev
    await ctx.store.set("asked for", "20 euros")
    return events.InputRequiredEvent(prefix="pay?")


async def decide(ctx: Any, ev: Any) -> Any:
    """End with what was asked for and decided."""
    return events.StopEvent(result=f"{await ctx.store.get('asked for')}: {ev.decision}")


# LlamaIndex reads them. Its package is not where types are checked.
ask.__annotations__ = {
    "ctx": workflows.Context,
    "ev": events.StartEvent,
    "return": events.InputRequiredEvent,
}
decide.__annotations__ = {"ctx": workflows.Context, "ev": Decided, "return": events.StopEvent}


class Approval(workflows.Workflow):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Asks a person, and ends with their answer."""


for each in (ask, decide):
    workflows.step(workflow=Approval)(each)


async def main(url: str, what: str, handler_id: str) -> None:
    """Start a run and stay, or answer one that another server has started."""
    async with RedisStateStore.from_url(url) as store:
        kept = RedisStateWorkflowStore(store)
        serving = server.WorkflowServer(workflow_store=kept)
        serving.add_workflow("approval", Approval(timeout=None), additional_events=[Decided])
        # What the server's HTTP routes call.
        service = serving._service  # noqa: SLF001
        async with serving.contextmanager():
            if what == "ask":
                workflow = service.get_workflow("approval")
                run = await service.start_workflow(workflow, handler_id)
                run_id, after = run.run_id, -1
            else:
                query = server.HandlerQuery(handler_id_in=[handler_id])
                (found,) = await kept.query(query)
                run_id, seen = found.run_id, await kept.query_events(found.run_id)
                after = seen[-1].sequence
                await service.send_event(handler_id, Decided(decision="yes"))
            async for event in kept.subscribe_events(run_id, after):
                if event.event.type == "InputRequiredEvent":
                    print("asked", flush=True)
                if event.event.type == "StopEvent":
                    print(event.event.value["result"], flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
