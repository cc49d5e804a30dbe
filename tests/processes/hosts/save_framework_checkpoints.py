"""Save checkpoints and messages of Agent Framework, and print the id of each, until killed."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.agent_framework import (
    RedisStateCheckpointStorage,
    RedisStateHistoryProvider,
)

framework: Any = import_module("agent_framework")


async def main(argument: dict[str, Any]) -> None:
    """Save and acknowledge, one after the other."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    async with RedisStateStore(settings) as store:
        storage: Any = RedisStateCheckpointStorage(store)
        history: Any = RedisStateHistoryProvider(store)
        for number in range(1_000_000):
            name = f"{argument['name']}{number}"
            await storage.save(
                framework.WorkflowCheckpoint(
                    workflow_name="w",
                    graph_signature_hash="h",
                    checkpoint_id=name,
                    state={"name": name},
                )
            )
            message = framework.Message(role="user", contents=[name])
            await history.save_messages("s", [message])
            print(name, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
