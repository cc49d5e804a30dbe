"""The server that the conformance scenarios of MCP ask for: its tools, by the names they need."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from redis_state.integrations.mcp import (
    RedisSubscriptionBus,
    RedisTasks,
    durable_tool,
    elicit,
    form_request,
    input_of,
    open_input,
)
from redis_state.worker import TaskClient, TaskContext


class Confirmation(BaseModel):
    """Whether something is to be done."""

    confirm: bool


class UserName(BaseModel):
    """Who asks."""

    name: str


@durable_tool
async def slow_compute(ctx: TaskContext, seconds: float, label: str = "") -> str:
    """Sleep, then answer."""
    await ctx.sleep(timedelta(seconds=seconds))
    return f"computed {label} in {seconds} s"


@durable_tool(required=True)
async def failing_job(ctx: TaskContext) -> str:
    """Fail as a tool does."""
    await ctx.sleep(timedelta(seconds=1))
    raise ToolError("it always fails")


@durable_tool
async def protocol_error_job(ctx: TaskContext) -> str:
    """Fail as a protocol does."""
    del ctx
    raise MCPError(-32050, "no such job")


@durable_tool
async def confirm_delete(ctx: TaskContext, filename: str) -> str:
    """Ask before a file is deleted."""
    answer = await elicit(ctx, f"Delete {filename}?", Confirmation)
    return f"{filename}: {answer.action}"


@durable_tool
async def multi_input(ctx: TaskContext) -> str:
    """Ask two things at once."""
    asked = [form_request(f"Question {number}", Confirmation) for number in (1, 2)]
    pauses = [await open_input(ctx, request) for request in asked]
    answers = [
        await input_of(ctx, pause, request) for pause, request in zip(pauses, asked, strict=True)
    ]
    return f"{len(answers)} answers"


async def _ask_name() -> Elicit[UserName]:
    return Elicit("What is your name?", UserName)


@durable_tool(required=True)
async def test_tool_with_task(
    ctx: TaskContext, user: Annotated[UserName, Resolve(_ask_name)]
) -> str:
    """Ask in the call, then go on as a task."""
    del ctx
    return f"Hello, {user.name}!"


TOOLS = (
    *(slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input),
    test_tool_with_task,
)


def make_server(client: TaskClient, bus: RedisSubscriptionBus) -> MCPServer:
    """Make the server."""
    server = MCPServer(
        "conformance",
        extensions=[RedisTasks(client, TOOLS, poll_s=0.1)],
        subscriptions=bus,
        log_level="ERROR",
    )

    @server.tool()
    async def greet(name: str) -> str:
        """Greet."""
        return f"Hello, {name}!"

    @server.tool()
    async def test_reconnection(ctx: Context) -> str:
        """Close the stream of the call, and answer all the same."""
        await ctx.close_sse_stream()
        return "Reconnection test completed successfully"

    return server
