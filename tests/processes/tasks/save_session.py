"""Save one session again and again, from a process of its own; print what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.agents import SessionStore
from redis_state.errors import SessionConflict
from redis_state.testing import eventually


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Add a message and save, so often; tell the versions that came of it, and the refusals."""
    versions: list[int] = []
    stated: list[str] = []
    refused = 0
    async with RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store:
        sender, key = store.transport.sender, f"{argument['namespace']}:v1:{{start}}:start"
        await sender.send("HINCRBY", key, "here", 1, repeatable=False)
        await sender.send("PEXPIRE", key, 3_600_000, repeatable=True)

        async def all_here() -> bool:
            here = int(await sender.send("HGET", key, "here", repeatable=True))
            return here >= int(argument["processes"])

        await eventually(all_here, "all processes have begun", timeout_s=60)
        sessions = SessionStore(store)
        for number in range(argument["saves"]):
            session = await sessions.get("a")
            text = f"{argument['name']} {number}"
            try:
                saved = await sessions.save(
                    session.with_state(session.state.with_user_message(text))
                )
            except SessionConflict:
                refused += 1
            else:
                versions.append(saved.version)
                stated.append(text)
    return {"versions": versions, "said": stated, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
