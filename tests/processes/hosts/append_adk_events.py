"""Append events that change the states of an app and a user, and print the id of each."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.google_adk import RedisStateSessionService


async def main(argument: dict[str, Any]) -> None:
    """Append events, each with a name of its own in three states."""
    name, events = argument["name"], import_module("google.adk.events")
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    async with RedisStateStore(settings) as store:
        service = RedisStateSessionService(store)
        session = await service.create_session(app_name="p", user_id="u", session_id=name)
        for number in range(argument["count"]):
            mark = f"{name}-{number}"
            delta = {f"app:{mark}": number, f"user:{mark}": number, mark: number}
            made = events.Event(id=mark, author="a", actions=events.EventActions(state_delta=delta))
            await service.append_event(session, made)
            print(mark, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
