"""Child tasks in the chat of their parent: each is named once, and written out on request."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")

import httpx

from redis_state import RedisStateStore
from redis_state.gateway import create_gateway
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving

SCOPES = ("read:*", "submit:*", "resolve:*", "steer:*")


async def boss(ctx: TaskContext) -> Any:
    """Spawn two, wait for one of them, and write."""
    left = await ctx.spawn("helper", "left")
    right = await ctx.spawn("helper", "right")
    await ctx.receive("look", hold_s=60)
    await ctx.join(right)
    async with ctx.text("answer") as out:
        out.write("I have asked.")
    await ctx.receive("go", hold_s=60)
    return {"left": left.task_id, "right": right.task_id}


async def helper(ctx: TaskContext) -> Any:
    """Write, and have one of its own."""
    async with ctx.text("answer") as out:
        out.write(f"I am {ctx.input}.")
        await out.flush()
        if ctx.input == "right":
            await ctx.join(await ctx.spawn("last"))
        out.write(" Done.")


async def last(ctx: TaskContext) -> Any:
    """Write once it is told to."""
    await ctx.receive("write", hold_s=60)
    async with ctx.text("answer") as out:
        out.write("I am the last.")


HANDLERS = {"boss": boss, "helper": helper, "last": last}


@asynccontextmanager
async def served(store: RedisStateStore) -> AsyncGenerator[tuple[TaskClient, httpx.AsyncClient]]:
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
    headers = {"authorization": f"Bearer {tokens.mint('ann', SCOPES)}"}
    async with (
        serving(agent(store.settings, HANDLERS)),
        client_of(store) as tasks,
        serving_asgi(app, stop=app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60
        ) as http,
    ):
        yield tasks, http
    await app.aclose()


def children_of(client: AgUiClient) -> list[dict[str, Any]]:
    named = [each for each in client.of("CUSTOM") if each["name"] == "redis_state.child"]
    return [each["value"] for each in named]


async def last_of(tasks: TaskClient) -> str:
    async def look() -> str | None:
        found = await tasks.find(session_id="s", handler="last")
        return found.tasks[0].task_id if found.tasks else None

    return await eventually(look, "the last child is there")


async def test_each_child_is_named_once_awaited_or_not_also_to_who_joins_or_reads_again(
    store: RedisStateStore,
) -> None:
    async with served(store) as (tasks, http):
        ann, bob = AgUiClient(http), AgUiClient(http)
        async with ann.running("boss", run_input("s", "t")) as events:
            async for _ in events:
                if len(children_of(ann)) == 2:
                    break
        names = [each["task_id"] for each in children_of(ann)]
        assert [(each["handler"], each["state"]) for each in children_of(ann)] == [
            ("helper", "running"),
            ("helper", "running"),
        ]
        async with bob.connected("s", "t", fresh=True) as events:
            async for _ in events:
                if len(children_of(bob)) == 2:
                    break
        assert children_of(bob) == children_of(ann)
        for name in ("look", "go"):
            await tasks.signal("s", "t", name)
        await tasks.signal("s", await last_of(tasks), "write")
        # Behind the last event: what was named is not named again.
        for client in (ann, bob):
            await client.connect("s", "t")
            assert [(each["task_id"], each["state"]) for each in children_of(client)] == [
                (names[0], "running"),
                (names[1], "running"),
                (names[1], "ended"),
            ]
            assert list(client.text().values()) == ["I have asked."]
        whole, late = AgUiClient(http), AgUiClient(http)
        await whole.connect("s", "t", params={"after": "0"})
        assert children_of(whole) == children_of(ann)
        await late.connect("s", "t")
        assert [(each["task_id"], each["state"]) for each in children_of(late)] == [
            (names[0], "running"),
            (names[1], "ended"),
        ]
        page = await http.get("/v1/ai-sdk/boss/s/stream", params={"task": "t"})
        chunks = [json.loads(line[6:]) for line in page.text.split("\n") if line[:7] == "data: {"]
        told = [each["data"] for each in chunks if each["type"] == "data-child"]
        assert told == children_of(ann)
