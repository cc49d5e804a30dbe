"""What the tests of the gateway share: handlers, callers with rights, and a gateway to call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from redis_state import RedisStateStore
from redis_state.gateway import BrowserTokens, Gateway, HookLinks, create_gateway
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.processes.pools import agent, client_of, queue_of, serving

SECRET = "a secret of the tests, of 32 bytes or more, as for each algorithm"
BASE = "http://gateway.test"
FORM = {
    "type": "object",
    "properties": {"limit": {"type": "integer", "minimum": 1, "maximum": 1000}},
    "required": ["limit"],
}

tokens = BrowserTokens(SECRET)
links = HookLinks(SECRET)


async def echo(ctx: TaskContext) -> Any:
    """Return the input."""
    return ctx.input


async def fail(ctx: TaskContext) -> Any:
    """Fail, after a step."""
    await ctx.step("before", _nothing)
    raise RuntimeError("the handler's own reason")


async def ask(ctx: TaskContext) -> Any:
    """Ask for an approval, and tell everybody the token."""
    pause = await ctx.open_pause("refund?", {"who": "<b>bob</b>"}, tags=["finance"])
    await ctx.progress(f"https://example.com/decide?token={pause.token}")
    decision = await ctx.wait_for(pause)
    return {"approved": decision.approved, "value": decision.value, "by": decision.actor}


async def asks_about(ctx: TaskContext) -> Any:
    """Ask about the input."""
    pause = await ctx.open_pause("fine?", ctx.input)
    return (await ctx.wait_for(pause)).approved


async def fill_in(ctx: TaskContext) -> Any:
    """Ask for a value of a form."""
    pause = await ctx.open_pause("limit?", schema=FORM, tags=["limits"])
    decision = await ctx.wait_for(pause)
    return decision.value


async def hidden(ctx: TaskContext) -> Any:
    """Ask without revealing the pause: its id goes out in an update of the handler's own."""
    pause = await ctx.open_pause("secret?", reveal=False)
    await ctx.progress(f"id {pause.pause_id}")
    decision = await ctx.wait_for(pause)
    return decision.actor


async def vote(ctx: TaskContext) -> Any:
    """Ask one person, who may hand the vote on."""
    pause = await ctx.open_pause("vote?", of=["ann"])
    return (await ctx.wait_for(pause)).actor


async def publish(ctx: TaskContext) -> Any:
    """Leave one of all that a task may leave: steps, values, updates, a compensation."""
    ctx.on_failure(_nothing, on_cancel=True)
    await ctx.step("before", _nothing)
    await ctx.checkpoint_step("checkpoint", _nothing)
    await ctx.publish_value("k", ctx.input)
    await ctx.progress("half", step=1, total=2)
    await ctx.tool_call("look", {"at": 1}, [2.5, None])
    await ctx.set_attributes({"n": 1, "paid": True, "text": "5"})
    async with ctx.text("answer") as out:
        out.write("words")
    return {"input": ctx.input}


async def recite(ctx: TaskContext) -> None:
    """Stream a text with the token of a pause, in pieces of so many signs."""
    pause = await ctx.open_pause("refund?")
    half = quote(pause.token, safe="")[:9]
    text = f"see ?token={pause.token}&x, {pause.token}and {half}"
    async with ctx.text("answer") as out:
        for place in range(0, len(text), ctx.input):
            out.write(text[place : place + ctx.input])
            await out.flush()
    await ctx.wait_for(pause)


async def parent(ctx: TaskContext) -> Any:
    """Spawn a child and wait for it."""
    child = await ctx.spawn("echo", "of the child")
    return await ctx.join(child)


async def _nothing() -> None:
    return None


HANDLERS = {
    "echo": echo,
    "fail": fail,
    "ask": ask,
    "asks_about": asks_about,
    "fill_in": fill_in,
    "hidden": hidden,
    "parent": parent,
    "vote": vote,
    "publish": publish,
    "recite": recite,
}


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway, and the client of its pool."""

    app: Gateway
    client: TaskClient
    store: RedisStateStore

    def caller(self, subject: str = "ann", *scopes: str) -> httpx.AsyncClient:
        """Make a caller with these scopes."""
        return caller(self.app, subject, *scopes)


def caller(app: Any, subject: str, *scopes: str, base: str = BASE) -> httpx.AsyncClient:
    """Make a caller of an application."""
    headers = {"authorization": f"Bearer {tokens.mint(subject, scopes)}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=base, headers=headers, timeout=30
    )


def stranger(app: Any, **headers: str) -> httpx.AsyncClient:
    """Make a caller without credentials."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=headers)


@asynccontextmanager
async def gateway_of(
    store: RedisStateStore, *, handlers: Iterable[str] = (), **options: Any
) -> AsyncGenerator[Served]:
    """Serve handlers by a pool, and make a gateway of the store."""
    chosen = {name: HANDLERS[name] for name in handlers or HANDLERS}
    options.setdefault("auth", tokens)
    app = create_gateway(store, hooks=links, queue=queue_of(store.settings), **options)
    async with serving(agent(store.settings, chosen)), client_of(store) as client:
        try:
            yield Served(app, client, store)
        finally:
            await app.aclose()


def at(session_id: str, task_id: str, *rest: str) -> str:
    """Write the path of a task."""
    parts = ("v1", "sessions", session_id, "tasks", task_id, *rest)
    return "/" + "/".join(map(_quoted, parts))


def _quoted(part: str) -> str:
    # A client would take dots alone for parts of the path.
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part.encode("utf-8", "surrogatepass"), safe="")


def of_pause(pause_id: str, *rest: str) -> str:
    """Write the path of a pause."""
    return "/" + "/".join(quote(part, safe="") for part in ("v1", "pauses", pause_id, *rest))


async def paused(served: Served, session_id: str, task_id: str) -> str:
    """Wait for a task's pause; return its public id."""

    async def found() -> str | None:
        state = await served.client.get(session_id, task_id)
        if state is None or state.status.value != "PAUSED":
            return None
        pauses = await served.client.pauses(session_id)
        return next((each.pause_id for each in pauses if each.task_id == task_id), None)

    pause_id = await eventually(found, f"{task_id} is paused")
    assert pause_id is not None
    return pause_id


async def ends(served: Served, session_id: str, task_id: str) -> Any:
    """Wait for a task's end; return it."""
    return await served.client.wait(session_id, task_id, timeout_s=30)


def code_of(response: httpx.Response) -> str:
    """Return the code of an error."""
    return str(response.json()["error"]["code"])


Act = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
