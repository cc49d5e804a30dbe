"""Serve a workflow of LlamaIndex: start it and say that it asks, or answer it and print it."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.llama_index import RedisStateWorkflowStore
from redis_state.testing import eventually
from tests.support.agents.llama_workflow import Answered, Counting

server: Any = import_module("llama_agents.server")


async def main(argument: dict[str, Any]) -> None:
    """Start a run and stay, or answer what another process has started."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    async with RedisStateStore(settings) as store:
        workflows = RedisStateWorkflowStore(store)
        serving = server.WorkflowServer(workflow_store=workflows)
        serving.add_workflow("counting", Counting(timeout=None), additional_events=[Answered])
        service = serving._service
        async with serving.contextmanager():
            if argument["answer"] is None:
                made = await service.start_workflow(service.get_workflow("counting"), "h")
                async for event in workflows.subscribe_events(made.run_id):
                    if event.event.type == "InputRequiredEvent":
                        print("asked", flush=True)  # noqa: T201
                        await asyncio.Event().wait()
            await service.send_event("h", Answered(number=argument["answer"]))

            async def ended() -> Any:
                (handler,) = await workflows.query(server.HandlerQuery(handler_id_in=["h"]))
                return handler.status == "completed" and handler.result

            result = await eventually(ended, "the run ends")
            print(result.result, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
