"""A clerk: one turn of a conversation, in a process of its own.

python -m examples.google_adk.clerk <url> <session> <item>
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any

from redis_state import RedisStateStore
from redis_state.integrations.google_adk import RedisStateSessionService

adk: Any = import_module("google.adk")
llms: Any = import_module("google.adk.models")
types: Any = import_module("google.genai.types")

APP, USER = "shop", "ann"


class Scripted(llms.BaseLlm):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Stands for a real model: it sells what is asked for, and then says what it sold.

    Asked for "nothing" it answers never, as a model does whose connection died.
    """

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: FBT001 - ADK's own signature
    ) -> AsyncGenerator[Any]:
        """Answer the last part of the conversation."""
        del stream
        last = llm_request.contents[-1].parts[-1]
        if last.text == "nothing":
            print("asked", flush=True)
            await asyncio.Event().wait()
        if last.function_response:
            part = types.Part(text=f"sold {last.function_response.response['result']}")
        else:
            part = types.Part.from_function_call(name="sell", args={"item": last.text})
        yield llms.LlmResponse(content=types.Content(role="model", parts=[part]))


def sell(item: str, tool_context: Any) -> str:
    """Sell an item, and keep in the states of the app, the user and the session that it is sold."""
    for scope in ("app:", "user:", ""):
        tool_context.state[f"{scope}sold {item}"] = True
    return item


async def main(url: str, session_id: str, item: str) -> None:
    """Take one turn."""
    async with RedisStateStore.from_url(url) as store:
        runner = adk.Runner(
            app_name=APP,
            agent=adk.Agent(name="clerk", model=Scripted(model="scripted"), tools=[sell]),
            session_service=RedisStateSessionService(store),
            auto_create_session=True,
        )
        said = types.Content(role="user", parts=[types.Part(text=item)])
        async for event in runner.run_async(user_id=USER, session_id=session_id, new_message=said):
            if event.is_final_response():
                print(event.content.parts[0].text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
