"""A worker whose graph streams a model that stops half way, once for all workers, to be killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.integrations.langgraph import graph_handler
from redis_state.worker import AgentWorker
from tests.chaos.support.notes import note
from tests.support.agents.chat_models import called, tokens


async def main(argument: dict[str, Any]) -> None:
    """Serve the graph until killed."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    folder = Path(argument["folder"])

    async def before(number: int) -> None:
        if number == 30 and not (folder / "held").exists():
            note(folder, "held", argument["name"])
            await asyncio.Event().wait()

    build = called(*tokens(60, message_id=argument["message_id"]), before=before)
    worker = AgentWorker(
        {"graph": graph_handler(build, stream_mode=["messages", "updates"])},
        settings=settings,
        queue=argument["queue"],
        name=argument["name"],
        poll_s=0.01,
        # A busy machine must not lose it, or the other one goes on at once.
        lease_s=5,
    )
    await worker.serve()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
