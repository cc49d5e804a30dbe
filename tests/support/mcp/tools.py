"""The tools of the tests' MCP servers. What they do is noted in a folder."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

from redis_state.integrations.mcp import (
    durable_tool,
    elicit,
    form_request,
    input_of,
    open_input,
)
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.chaos.support.notes import note


class Answer(BaseModel):
    """What a user answers."""

    ok: bool


class Place(BaseModel):
    """A place with a name that Python does not allow."""

    at: str = Field(alias="from")


@durable_tool
async def echo(ctx: TaskContext, value: Any) -> dict[str, Any]:
    """Return what was given."""
    await ctx.progress("echoing")
    return {"value": value}


@durable_tool(name="odd.name-1", title="Odd")
async def odd(ctx: TaskContext, place: Place, count: Annotated[int, Field(ge=1)] = 3) -> str:
    """Take a model and a number."""
    del ctx
    return f"{place.at} x {count}"


@durable_tool(required=True)
async def fail(ctx: TaskContext, how: str) -> str:
    """Fail in one of the ways."""
    if how == "tool":
        raise ToolError("the model may read this")
    if how == "protocol":
        raise MCPError(-32050, "the client reads this\nall")
    if how == "pause":
        await ctx.pause(timeout=timedelta(milliseconds=1))
    raise RuntimeError("a secret of the server")


@durable_tool
async def sleep(ctx: TaskContext, seconds: float) -> str:
    """Sleep, durably."""
    await ctx.sleep(timedelta(seconds=seconds))
    return "slept"


@durable_tool
async def approve(ctx: TaskContext) -> str:
    """Wait for an operator, and not for the client."""
    decision = await ctx.approval("May it?")
    return "yes" if decision.approved else "no"


@durable_tool
async def ask_twice(ctx: TaskContext) -> str:
    """Ask two things at once, then a third."""
    asked = [form_request(f"question {each}", Answer) for each in (1, 2)]
    pauses = [await open_input(ctx, each) for each in asked]
    first = [await input_of(ctx, *each) for each in zip(pauses, asked, strict=True)]
    third = await elicit(ctx, "question 3", Answer, name="third")
    return " ".join([*(str(getattr(each, "action", "")) for each in first), third.action])


async def _ask_name() -> Elicit[Answer]:
    return Elicit("before the task", Answer)


@durable_tool
async def resolved(ctx: TaskContext, answer: Annotated[Answer, Resolve(_ask_name)]) -> str:
    """Ask in the call, before there is a task."""
    del ctx
    return f"ok={answer.ok}"


@durable_tool
async def trip(ctx: TaskContext, folder: str) -> str:
    """Do two things, of which the second waits for a file, then ask, then do a third."""
    path = Path(folder)

    async def do(what: str) -> str:
        note(path, "did", what)
        if what == "hold":
            await eventually((path / "go").exists, "it may go on", timeout_s=60)
        return what

    done = [await ctx.step(what, do, what) for what in ("first", "hold")]
    answer = await elicit(ctx, "go on?", Answer)
    done.append(await ctx.step("last", do, "last"))
    return f"{done} {answer.action}"


TOOLS = (echo, odd, fail, sleep, approve, ask_twice, resolved, trip)
