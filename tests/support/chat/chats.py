"""Handlers that a chat shows: one of everything, and what waits, asks and fails."""

from __future__ import annotations

from typing import Any

from redis_state.worker import RetryPolicy, TaskContext, retried


async def talk(ctx: TaskContext) -> Any:
    """Show one of everything."""
    await ctx.progress("thinking", step=1, total=2)
    await ctx.thinking("hm")
    async with ctx.text("answer") as out:
        out.write("Hel")
        await out.flush()
        out.write("lo")
    await ctx.progress("searching", step=2, total=2)
    await ctx.tool_call("search", {"q": 1}, {"found": 2})
    await ctx.publish_value("count", 1)
    await ctx.publish_value("a/b~c", [2])
    await ctx.progress("done")
    return {"ok": True}


async def wait_in_text(ctx: TaskContext) -> Any:
    """Stop in the middle of a text until it is told to go on."""
    async with ctx.text("answer") as out:
        out.write("one ")
        await out.flush()
        await ctx.receive("go", hold_s=60)
        out.write("two")
    return None


async def approve(ctx: TaskContext) -> Any:
    """Ask, then say what was answered."""
    async with ctx.text("before") as out:
        out.write("May I?")
    pause = await ctx.open_pause("refund?", {"who": "bob"})
    decision = await ctx.wait_for(pause)
    async with ctx.text("after") as out:
        out.write(f"{decision.actor}: {decision.approved}, {decision.value}")
    return None


async def blurt(ctx: TaskContext) -> Any:
    """Ask, and tell everybody the token."""
    pause = await ctx.open_pause("refund?", {"link": "none"})
    await ctx.result(f"https://example.com/decide?token={pause.token}")
    await ctx.wait_for(pause)


async def say(ctx: TaskContext) -> Any:
    """Return a text."""
    return f"you said {ctx.input['messages'][-1]['content']}"


async def fail(ctx: TaskContext) -> Any:
    """Fail in the middle of a text."""
    async with ctx.text("answer") as out:
        out.write("so")
        raise RuntimeError("no luck")


async def again(ctx: TaskContext) -> Any:
    """Fail in the middle of a text once, and write it again."""
    tries = 0

    async def write() -> None:
        nonlocal tries
        tries += 1
        async with ctx.text("answer") as out:
            out.write("first" if tries == 1 else "second try")
            await out.flush()
            if tries == 1:
                raise ConnectionError

    policy = RetryPolicy(attempts=2, on=ConnectionError, wait_initial_s=0.01, wait_jitter_s=0)
    await ctx.step("write", retried(write, policy))


async def delegate(ctx: TaskContext) -> Any:
    """Have two others write, and write between their ends."""
    first, second = [await ctx.spawn(name) for name in ("talk", "again")]
    await ctx.join(first)
    async with ctx.text("answer") as out:
        out.write("One has.")
    await ctx.join(second)


HANDLERS = {
    "delegate": delegate,
    "again": again,
    "blurt": blurt,
    "talk": talk,
    "wait": wait_in_text,
    "approve": approve,
    "say": say,
    "fail": fail,
}
