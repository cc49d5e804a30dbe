"""Run a real planner several times on one session; print how many answers it gave."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penguiflow.planner.memory import MemoryBudget, ShortTermMemoryConfig

from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.memory import create_memory, summarizer_of
from tests.support.penguiflow.planner import Model, planner_of


async def main(argument: dict[str, Any]) -> int:
    """Run the planner."""
    store = create_store(url=argument["url"], namespace=argument["namespace"])
    config = ShortTermMemoryConfig(
        strategy="rolling_summary",
        budget=MemoryBudget(full_zone_turns=3, summary_max_tokens=10**6, total_max_tokens=0),
    )
    model = Model()
    memory = create_memory(config, summarizer=summarizer_of(model))
    planner = planner_of(store, memory, model)
    context = {"tenant_id": "acme", "user_id": "ana", "session_id": "s-1"}
    for number in range(argument["runs"]):
        await planner.run(f"{argument['name']}-{number}", tool_context=context)
    await memory.flush()
    await memory.aclose()
    await store.aclose()
    return len(model.shown)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
