"""Chats beside child tasks, dead links, a restored backup, repeated posts, and a stop."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")


from redis_state import RedisStateStore, Settings
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.chat.served import over_http, served
from tests.support.processes.pools import agent, client_of, queue_of, serving
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy, certificate, tls_server_context

PIECES = 12
READERS = 40


async def hand_off(ctx: TaskContext) -> Any:
    """Write, and leave the rest to a child."""
    async with ctx.text("answer") as out:
        out.write("I ask the clerk.")
    return await ctx.join(await ctx.spawn("clerk"))


async def clerk(ctx: TaskContext) -> Any:
    """Write, and ask."""
    async with ctx.text("answer") as out:
        out.write("I am the clerk.")
    await ctx.approval("refund?")


async def in_pieces(ctx: TaskContext) -> Any:
    """Write a piece for each message."""
    async with ctx.text("answer") as out:
        for number in range(PIECES):
            await ctx.receive(f"go {number}", hold_s=60)
            out.write(f"{number} ")
            await out.flush()


async def in_pieces_below(ctx: TaskContext) -> Any:
    """Leave the pieces to a child."""
    return await ctx.join(await ctx.spawn("in_pieces"))


class Tool:
    """A tool that runs until it is let go."""

    def __init__(self) -> None:
        self.runs = asyncio.Event()
        self.may_end = asyncio.Event()

    async def handler(self, ctx: TaskContext) -> Any:
        """Use it, and then write."""
        await ctx.step("tool", self.use)
        await ctx.tool_call("search", {"q": 1}, {"found": 2})
        async with ctx.text("answer") as out:
            out.write("too late")

    async def use(self) -> None:
        """Run."""
        self.runs.set()
        await self.may_end.wait()


HANDLERS = {
    "hand_off": hand_off,
    "clerk": clerk,
    "in_pieces": in_pieces,
    "in_pieces_below": in_pieces_below,
}


def sent(chat: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "hi"}]
    return {"id": chat, "messages": [{"id": "m", "role": "user", "parts": parts}]}


def chunks_of(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_a_run_names_the_child_it_waits_for_whose_own_run_has_the_rest(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (_, http):
        ann = AgUiClient(http)
        reading = asyncio.create_task(ann.run("hand_off", run_input("s", "t")))

        (child,) = await eventually(ann.children, "the child is named")
        assert child["state"] == "running"
        of_child = await AgUiClient(http).connect("s", child["task_id"])
        assert list(of_child.text().values()) == ["I am the clerk."]
        (interrupt,) = of_child.events[-1]["outcome"]["interrupts"]
        entry = {
            "interruptId": interrupt["id"],
            "status": "resolved",
            "payload": {"approved": True},
        }
        rest = await AgUiClient(http).run("clerk", run_input("s", "r2", resume=[entry]))
        assert rest.events[-1]["outcome"] == {"type": "success"}
        await reading
        assert ann.children()[1:] == [{**child, "state": "ended"}]
        assert list(ann.text().values()) == ["I ask the clerk."]
        assert ann.events[-1]["outcome"] == {"type": "success"}


async def test_a_message_names_the_child_it_waits_for_which_can_be_read_and_approved(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        lines: list[str] = []

        async def read() -> None:
            async with http.stream("POST", "/v1/ai-sdk/hand_off", json=sent("c")) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)  # noqa: PERF401 - each is read as it comes

        reading = asyncio.create_task(read())
        named: list[dict[str, Any]] = await eventually(
            lambda: [e for e in chunks_of(lines) if e["type"] == "data-child"], "the child is named"
        )
        child = named[0]["data"]["task_id"]
        url = "/v1/ai-sdk/clerk/c/stream"
        for handler, status in (("clerk", 200), ("hand_off", 200), ("in_pieces", 404)):
            of_handler = f"/v1/ai-sdk/{handler}/c/stream"
            asked = await http.get(of_handler, params={"task": child})
            assert (asked.status_code, handler) == (status, handler)
        # Below the chat's task, and not above.
        (above,) = [
            each.task_id for each in await tasks.store.list_tasks("c") if each.task_id != child
        ]
        assert (await http.get(url, params={"task": above})).status_code == 404
        shown = await http.get(url, params={"task": child})
        kinds = [each["type"] for each in chunks_of(shown.text.split("\n"))]
        assert "tool-approval-request" in kinds
        (pause,) = await tasks.pauses("c")
        await tasks.resolve(str(pause.pause_id), approved=True, actor="bob")
        await reading
        states = [e["data"]["state"] for e in chunks_of(lines) if e["type"] == "data-child"]
        assert states == ["running", "ended"]
        assert chunks_of(lines)[-1] == {"type": "finish"}
        # Also after its end, by its id alone.
        ended = await http.get(url, params={"task": child})
        assert '"delta":"I am the clerk."' in ended.text
        assert (await http.get(url)).status_code == 204
        assert (await http.get(url, params={"task": "none"})).status_code == 404


async def test_forty_readers_over_tls_lose_nothing_of_a_child_while_the_gateways_links_die(
    settings: Settings, store: RedisStateStore, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(settings.url.get_secret_value(), tls=tls))
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        changed: dict[str, Any] = {"url": SecretStr(url), "call_timeout_s": 20.0}
        over = await stack.enter_async_context(RedisStateStore(settings.model_copy(update=changed)))
        # Before it is connected, calls have the shorter deadline of connecting.
        assert await over.load_memory_state("first") is None
        await stack.enter_async_context(serving(agent(settings, HANDLERS)))
        tasks = await stack.enter_async_context(client_of(store))
        http = await stack.enter_async_context(over_http(over, queue_of(settings)))
        ann, *others = (AgUiClient(http) for _ in range(READERS))
        below = {"children": "text"}
        run = ann.run("in_pieces_below", run_input("s", "t"), params=below)
        reading = [asyncio.create_task(run)]
        (child,) = await eventually(ann.children, "the child is named")
        reading += [asyncio.create_task(each.connect("s", "t", params=below)) for each in others]
        await eventually(lambda: all(each.events for each in others), "all have joined")
        cut = 0
        for number in range(PIECES):
            if number in (3, 7):
                cut += proxy.half_open()
            await tasks.signal("s", child["task_id"], f"go {number}")
        await asyncio.gather(*reading)
        assert cut
    whole = "".join(f"{number} " for number in range(PIECES))
    for each in (ann, *others):
        assert list(each.text().values()) == [whole]
        assert each.events[-1]["outcome"] == {"type": "success"}


async def test_a_stream_says_that_history_went_back_and_who_joins_has_what_is_kept() -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:

        async def write(generation: str, *pieces: str, end: bool = False) -> None:
            for number, text in enumerate(pieces, start=1):
                content = {"text": text, "text_id": "a", "generation": generation, "part": number}
                if end and number == len(pieces):
                    content["end"] = True
                await store.save_update(
                    StateUpdate(
                        session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content
                    )
                )

        async with client_of(store) as tasks, over_http(store) as http:
            await tasks.submit("none", None, session_id="s", task_id="t")
            await write("g", "one ")
            await server.mark()
            await write("h", "lost ", "too ")
            ann = AgUiClient(http)
            reading = asyncio.create_task(ann.connect("s", "t", params={"after": "0"}))
            await eventually(lambda: list(ann.text().values()) == ["lost too "], "all is read")
            lost = ann.ids[-1]
            await server.go_back()
            await write("i", "new ", end=True)
            await eventually(lambda: "new " in ann.text().values(), "the stream continues")
            notices = [e for e in ann.of("CUSTOM") if e["name"] == "redis_state.resync"]
            assert len(notices) == 1
            # The texts of the lost rows and of the rows before them are replaced.
            assert list(ann.text().values()) == ["new "]
            await tasks.cancel("s", "t")
            await reading
            assert ann.events[-1]["outcome"] == {"type": "cancelled"}
            late = await AgUiClient(http).connect("s", "t")
            assert late.text() == ann.text()
            refused = await http.get(
                "/v1/sessions/s/tasks/t/ag-ui", headers={"last-event-id": lost}
            )
            assert refused.status_code == 410


async def test_forty_posts_of_one_message_at_once_are_one_task_for_all(
    store: RedisStateStore,
) -> None:
    async def say(_: TaskContext) -> str:
        return "said"

    async with served(store, {**HANDLERS, "say": say}) as (_, http), asyncio.timeout(60):
        posts = [http.post("/v1/ai-sdk/say", json=sent("c")) for _ in range(20)]
        runs = [http.post("/v1/ag-ui/say", json=run_input("s", "t")) for _ in range(20)]
        answers = await asyncio.gather(*posts, *runs)
        assert {each.status_code for each in answers} == {200}
        assert all("said" in each.text for each in answers)
        assert [len(await store.list_tasks(name)) for name in ("c", "s")] == [1, 1]


async def test_a_stop_while_a_tool_runs_ends_the_message_behind_the_tool(
    store: RedisStateStore,
) -> None:
    tool = Tool()
    async with served(store, {**HANDLERS, "use": tool.handler}) as (_, http), asyncio.timeout(60):
        reading = asyncio.create_task(http.post("/v1/ai-sdk/use", json=sent("c")))
        await tool.runs.wait()
        stopped = await http.post("/v1/ai-sdk/use/c/stop")
        assert stopped.status_code == 202
        tool.may_end.set()
        answer = await reading
        chunks = chunks_of(answer.text.split("\n"))
        assert chunks[-1] == {"type": "abort"}
        assert not [each for each in chunks if each["type"] == "text-delta"]


@pytest.mark.parametrize("part", [2, 4], ids=["written again", "continued"])
async def test_lost_pieces_of_a_text_that_continues_are_replaced_for_who_is_connected(
    part: int,
) -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:

        async def write(text: str, number: int, **more: Any) -> None:
            content = {"text": text, "text_id": "a", "generation": "g", "part": number, **more}
            await store.save_update(
                StateUpdate(
                    session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content
                )
            )

        async with client_of(store) as tasks, over_http(store) as http:
            await tasks.submit("none", None, session_id="s", task_id="t")
            await write("kept ", 1)
            await server.mark()
            await write("lost ", 2)
            await write("too ", 3)
            ann = AgUiClient(http)
            lines: list[str] = []

            async def resume() -> None:
                url = "/v1/ai-sdk/none/s/stream"
                async with http.stream("GET", url, params={"task": "t"}) as answer:
                    async for line in answer.aiter_lines():
                        lines.append(line)  # noqa: PERF401 - each is read as it comes

            reading: list[asyncio.Task[Any]] = [
                asyncio.create_task(ann.connect("s", "t")),
                asyncio.create_task(resume()),
            ]
            await eventually(lambda: "too " in str(ann.text()), "the run is read")
            await eventually(lambda: "too " in str(lines), "the message is read")
            await server.go_back()
            await write("new", part, end=True)
            await eventually(lambda: "new" in str(ann.text()), "the run continues")
            await eventually(lambda: '"new"' in str(lines), "the message continues")
            await tasks.cancel("s", "t")
            await asyncio.gather(*reading)
            late = await AgUiClient(http).connect("s", "t")
        assert list(ann.text().values()) == list(late.text().values()) == ["kept new"]
        chunks = chunks_of(lines)
        dropped = [each["type"] for each in chunks].index("data-dropped")
        texts = [each["delta"] for each in chunks[dropped:] if each["type"] == "text-delta"]
        assert "".join(texts) == "kept new"
        assert chunks[dropped - 1] == {"type": "text-end", "id": chunks[dropped]["data"]["id"]}
