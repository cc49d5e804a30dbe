"""The tool, the server that offers it, and the worker that runs it."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from redis_state import RedisStateStore
from redis_state.integrations.mcp import (
    RedisEventStore,
    RedisSubscriptionBus,
    RedisTasks,
    durable_tool,
    elicit,
    mcp_handlers,
)
from redis_state.settings import make_settings
from redis_state.worker import AgentWorker, TaskClient, TaskContext


class Consent(BaseModel):
    """What the user is asked before a trip is paid."""

    pay: bool


@durable_tool
async def book_trip(ctx: TaskContext, city: str) -> str:
    """Book a trip, once the user agrees to its price."""
    # The ledger is the outside world: a line for each thing that was done.
    ledger = Path(os.environ["TRIPS_LEDGER"])

    def write(what: str) -> int:
        with ledger.open("a", encoding="utf-8") as book:
            book.write(f"{what} {city} {os.getpid()}\n")
        return 90 * len(city)

    price = await ctx.step("reserve", write, "reserve")
    await ctx.sleep(timedelta(seconds=1.5), name="the hotel answers")
    answer = await elicit(ctx, f"Pay {price} for {city}?", Consent)
    if answer.action != "accept" or not answer.data.pay:
        return f"{city}: not booked"
    await ctx.step("pay", write, "pay")
    return f"{city}: booked for {price}"


async def serve(url: str, port: int) -> None:
    """Serve the tool as one replica."""
    async with (
        RedisStateStore.from_url(url) as store,
        TaskClient(store) as client,
        RedisSubscriptionBus(store) as bus,
        RedisEventStore(store) as events,
    ):
        tasks = RedisTasks(client, [book_trip], poll_s=0.2)
        server = MCPServer("trips", extensions=[tasks], subscriptions=bus, log_level="CRITICAL")
        app = server.streamable_http_app(event_store=events)
        events.attach(server.session_manager)
        config = uvicorn.Config(app, port=port, log_level="critical")
        await uvicorn.Server(config).serve()


async def work(url: str) -> None:
    """Run calls of the tool."""
    await AgentWorker(mcp_handlers(book_trip), make_settings(url), lease_s=1.0).serve()


if __name__ == "__main__":
    role, server_url, *more = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(server_url, int(more[0])) if role == "server" else work(server_url))
