"""Runs that an interrupt ends in the middle: what is open is closed, and nothing is skipped."""

from __future__ import annotations

import asyncio
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
from redis_state.worker import TaskContext
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import Served, paused, tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving

SCOPES = ("read:*", "submit:*", "resolve:*", "steer:*")


async def ask_in_text(ctx: TaskContext) -> Any:
    """Ask in the middle of a step and of a text."""
    await ctx.progress("first", step=1, total=2)
    async with ctx.text("answer") as out:
        out.write("one ")
        await out.flush()
        await ctx.approval("go on?")
        out.write("two")
    await ctx.progress("second", step=2, total=2)


async def ask_twice(ctx: TaskContext) -> Any:
    """Ask, tell what was said, and ask again."""
    await ctx.approval("first?")
    async with ctx.text("between") as out:
        out.write("between")
    await ctx.approval("second?")


async def ask_both(ctx: TaskContext) -> Any:
    """Ask two things at once, and wait for one after the other."""
    pauses = [await ctx.open_pause(name) for name in ("first?", "second?")]
    for pause in pauses:
        await ctx.wait_for(pause)


async def ask_two_people(ctx: TaskContext) -> Any:
    """Ask both of two people."""
    pause = await ctx.open_pause("vote?", of=["ann", "bob"], approvals=2)
    await ctx.wait_for(pause)


HANDLERS = {
    "ask_in_text": ask_in_text,
    "ask_twice": ask_twice,
    "ask_both": ask_both,
    "ask_two_people": ask_two_people,
}


@asynccontextmanager
async def served(store: RedisStateStore, **options: Any) -> AsyncGenerator[tuple[Served, Any]]:
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings), **options)
    headers = {"authorization": f"Bearer {tokens.mint('ann', SCOPES)}"}
    async with (
        serving(agent(store.settings, HANDLERS)),
        client_of(store) as tasks,
        serving_asgi(app, stop=app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30
        ) as http,
    ):
        yield Served(app, tasks, store), http
    await app.aclose()


def approved(run: str, *ids: str) -> dict[str, Any]:
    entries = [
        {"interruptId": each, "status": "resolved", "payload": {"approved": True}} for each in ids
    ]
    return run_input("s", run, resume=entries)


def interrupts(client: AgUiClient) -> list[str]:
    return [each["id"] for each in client.events[-1]["outcome"]["interrupts"]]


async def test_a_text_and_a_step_that_are_open_at_an_interrupt_go_on_in_the_next_run(
    store: RedisStateStore,
) -> None:
    async with served(store) as (_, http):
        ann = await AgUiClient(http).run("ask_in_text", run_input("s", "t"))
        await ann.run("ask_in_text", approved("r2", *interrupts(ann)))
        assert ann.events[-1]["outcome"] == {"type": "success"}
        assert list(ann.text().values()) == ["one two"]
        assert len(ann.of("STEP_STARTED")) == len(ann.of("STEP_FINISHED")) == 2
        # Who has read a part of it has the rest of it, at each place.
        for number, event_id in enumerate(ann.ids, start=1):
            other = AgUiClient(http, ids=[event_id])
            for event in ann.events[:number]:
                other.checker.check(event)
            await other.connect("s", "t", params={"run_id": "r2"})


async def test_a_reader_that_is_behind_gets_what_came_before_the_next_interrupt(
    store: RedisStateStore,
) -> None:
    async with served(store) as (chat, http):
        ann = await AgUiClient(http).run("ask_twice", run_input("s", "t"))
        (first,) = interrupts(ann)
        await chat.client.resolve(first, approved=True, actor="bob")
        second = await paused(chat, "s", "t")
        assert second != first
        late = await AgUiClient(http).connect("s", "t", params={"after": "0"})
        assert interrupts(late) == [second]
        assert list(late.text().values()) == ["between"]


async def test_an_answer_to_one_of_two_pauses_ends_with_the_other(
    store: RedisStateStore,
) -> None:
    async with served(store) as (_, http):
        ann = await AgUiClient(http).run("ask_both", run_input("s", "t"))
        first, second = interrupts(ann)
        # The task waits for the first.
        async with asyncio.timeout(5):
            await ann.run("ask_both", approved("r2", second))
        assert interrupts(ann) == [first]
        await ann.run("ask_both", approved("r3", first))
        assert ann.events[-1]["outcome"] == {"type": "success"}


async def test_a_vote_that_decides_nothing_yet_ends_with_the_same_interrupt(
    store: RedisStateStore,
) -> None:
    async with served(store) as (chat, http):
        ann = await AgUiClient(http).run("ask_two_people", run_input("s", "t"))
        (pause,) = interrupts(ann)
        async with asyncio.timeout(5):
            await ann.run("ask_two_people", approved("r2", pause))
        assert interrupts(ann) == [pause]
        await chat.client.resolve(pause, approved=True, actor="bob")
        late = await AgUiClient(http).connect("s", "t")
        assert late.events[-1]["outcome"] == {"type": "success"}


async def test_approvals_of_a_message_are_sent_again_beside_the_next_one(
    store: RedisStateStore,
) -> None:
    async with served(store) as (chat, http):
        await chat.client.submit("ask_both", None, session_id="s", task_id="t")
        await paused(chat, "s", "t")
        first, second = [str(each.pause_id) for each in await chat.client.pauses("s")]
        for ids in ([second], [second, first]):
            parts = [
                {
                    "state": "approval-responded",
                    "toolCallId": each,
                    "approval": {"id": each, "approved": True},
                }
                for each in ids
            ]
            message = {"id": "t", "role": "assistant", "parts": parts}
            async with asyncio.timeout(10):
                ran = await http.post(
                    "/v1/ai-sdk/ask_both", json={"id": "s", "messages": [message]}
                )
            assert ran.status_code == 200, ran.text
            assert ran.text.endswith('{"type":"finish"}\n\ndata: [DONE]\n\n')
        state = await chat.client.wait("s", "t", timeout_s=10)
        assert state.status.value == "COMPLETE"
