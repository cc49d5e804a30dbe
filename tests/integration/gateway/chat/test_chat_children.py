"""Child tasks in the chat of their parent: each is named once, and written out on request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")


from redis_state import RedisStateStore
from redis_state.gateway.chat.parts import TextAdded, TextBegan, TextDropped, TextEnded
from redis_state.gateway.chat.shown import MOST_SHOWN, ShownMessage
from redis_state.gateway.chat.subtree_parts import SubtreeParts
from redis_state.gateway.streaming.events import FrameWriter
from redis_state.gateway.streaming.subtree import DEEPEST, MOST_TASKS, TaskSubtree
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.stores.sessions.session_log import Entry
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, TaskClient, TaskContext, retried
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.chat.served import over_http, served
from tests.support.processes.pools import client_of
from tests.support.servers.changes.rollback import rolling_back


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
    """Write after a signal."""
    await ctx.receive("write", hold_s=60)
    async with ctx.text("answer") as out:
        out.write("I am the last.")


async def asker(ctx: TaskContext) -> Any:
    """Ask while a child writes."""
    await ctx.spawn("last")
    await ctx.approval("refund?")
    async with ctx.text("answer") as out:
        out.write("So be it.")


async def fails_once(ctx: TaskContext) -> Any:
    """Fail in the middle of a text, and write it again."""
    tries = 0

    async def write() -> None:
        nonlocal tries
        tries += 1
        async with ctx.text("answer") as out:
            out.write("first" if tries == 1 else "second try")
            await out.flush()
            if tries == 1:
                await ctx.receive("fail", hold_s=60)
                raise ConnectionError

    policy = RetryPolicy(attempts=2, on=ConnectionError, wait_initial_s=0.01, wait_jitter_s=0)
    await ctx.step("write", retried(write, policy))


async def over(ctx: TaskContext) -> Any:
    """Wait for a child that fails once."""
    await ctx.join(await ctx.spawn("fails_once"))


async def clone(ctx: TaskContext) -> Any:
    """Have one of its own kind."""
    if ctx.input != "child":
        await ctx.spawn("clone", "child")
    await ctx.receive("go", hold_s=60)


HANDLERS = {
    "clone": clone,
    "asker": asker,
    "boss": boss,
    "fails_once": fails_once,
    "helper": helper,
    "last": last,
    "over": over,
}
TEXT = {"children": "text"}


def spawns(parent: str, child: str) -> StateUpdate:
    content = {"notice": "child", "task_id": child, "handler": "any"}
    kind = UpdateType.NOTIFICATION
    return StateUpdate(session_id="s", task_id=parent, update_type=kind, content=content)


def writes(task: str, text: str, part: int = 1, *, name: str = "a") -> StateUpdate:
    content = {"text": text, "text_id": name, "generation": "g", "part": part}
    kind = UpdateType.RESULT
    return StateUpdate(session_id="s", task_id=task, update_type=kind, content=content)


async def last_of(tasks: TaskClient, handler: str = "last") -> str:
    async def look() -> list[str]:
        found = await tasks.find(session_id="s", handler=handler)
        return [each.task_id for each in found.tasks]

    (found,) = await eventually(look, "the last child is there")
    return found


async def write_below(tasks: TaskClient) -> str:
    below = await last_of(tasks)
    await tasks.signal("s", below, "write")

    async def is_over() -> bool:
        state = await tasks.get("s", below)
        return state is not None and state.status is TaskStatus.COMPLETE

    await eventually(is_over, "the child has written")
    return below


def by_author(client: AgUiClient) -> dict[str | None, str]:
    """Put the messages together, each with who wrote it, as the official client does."""
    authors: dict[str, str | None] = {}
    for event in client.events:
        if event["type"] == "TEXT_MESSAGE_START":
            authors[event["messageId"]] = event.get("subagentRunId")
        elif event["type"] == "MESSAGES_SNAPSHOT":
            authors |= {each["id"]: each.get("subagentRunId") for each in event["messages"]}
    texts = client.text()
    found = {authors[name]: text for name, text in texts.items()}
    assert len(found) == len(texts)
    return found


async def test_each_child_is_named_once_awaited_or_not_also_to_who_joins_or_reads_again(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        ann, bob = AgUiClient(http), AgUiClient(http)
        async with ann.running("boss", run_input("s", "t")) as events:
            async for _ in events:
                if len(ann.children()) == 2:
                    break
        names = [each["task_id"] for each in ann.children()]
        assert [(each["handler"], each["state"]) for each in ann.children()] == [
            ("helper", "running"),
            ("helper", "running"),
        ]
        async with bob.connected("s", "t", fresh=True) as events:
            async for _ in events:
                if len(bob.children()) == 2:
                    break
        assert bob.children() == ann.children()
        for name in ("look", "go"):
            await tasks.signal("s", "t", name)
        await tasks.signal("s", await last_of(tasks), "write")
        # Behind the last event: what was named is not named again.
        for client in (ann, bob):
            await client.connect("s", "t")
            assert [(each["task_id"], each["state"]) for each in client.children()] == [
                (names[0], "running"),
                (names[1], "running"),
                (names[1], "ended"),
            ]
            assert list(client.text().values()) == ["I have asked."]
        whole, late = AgUiClient(http), AgUiClient(http)
        await whole.connect("s", "t", params={"after": "0"})
        assert whole.children() == ann.children()
        await late.connect("s", "t")
        assert [(each["task_id"], each["state"]) for each in late.children()] == [
            (names[0], "running"),
            (names[1], "ended"),
        ]
        page = await http.get("/v1/ai-sdk/boss/s/stream", params={"task": "t"})
        chunks = [json.loads(line[6:]) for line in page.text.split("\n") if line[:7] == "data: {"]
        named = [each["data"] for each in chunks if each["type"] == "data-child"]
        assert named == ann.children()


async def test_the_texts_of_all_below_a_task_are_in_its_run_on_request(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        ann, bob, plain = AgUiClient(http), AgUiClient(http), AgUiClient(http)
        async with ann.running("boss", run_input("s", "t"), params=TEXT) as events:
            async for _ in events:
                if {"I am left. Done.", "I am right."} <= set(ann.text().values()):
                    break
        # In the midst of a text of a child.
        async with bob.connected("s", "t", fresh=True, params=TEXT) as events:
            async for _ in events:
                if bob.of("MESSAGES_SNAPSHOT"):
                    break
        assert by_author(bob) == by_author(ann)
        for name in ("look", "go"):
            await tasks.signal("s", "t", name)
        below = await last_of(tasks)
        await tasks.signal("s", below, "write")
        left, right = [each["task_id"] for each in ann.children()][:2]
        all_of = {
            left: "I am left. Done.",
            right: "I am right. Done.",
            below: "I am the last.",
            None: "I have asked.",
        }
        for client in (ann, bob):
            await client.connect("s", "t", params=TEXT)
            assert by_author(client) == all_of
            assert client.events[-1]["outcome"] == {"type": "success"}
        late, whole = AgUiClient(http), AgUiClient(http)
        await late.connect("s", "t", params=TEXT)
        await whole.connect("s", "t", params={"after": "0", **TEXT})
        assert by_author(late) == by_author(whole) == all_of
        last = {each["task_id"]: each["state"] for each in whole.children()}
        assert last == {left: "ended", right: "ended", below: "ended"}
        await plain.connect("s", "t", params={"after": "0"})
        assert by_author(plain) == {None: "I have asked."}
        page = await http.get("/v1/ai-sdk/boss/s/stream", params={"task": "t", **TEXT})
        chunks = [json.loads(line[6:]) for line in page.text.split("\n") if line[:7] == "data: {"]
        metadata = [each["providerMetadata"] for each in chunks if "providerMetadata" in each]
        named = [each["redis_state"]["task_id"] for each in metadata]
        assert set(named) == {left, right, below}
        said = "".join(each["delta"] for each in chunks if each["type"] == "text-delta")
        assert sorted(said) == sorted("".join(all_of.values()))


async def test_what_a_child_writes_while_the_run_is_interrupted_comes_with_the_next(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        ann = await AgUiClient(http).run("asker", run_input("s", "t"), params=TEXT)
        (interrupt,) = ann.events[-1]["outcome"]["interrupts"]
        below = await write_below(tasks)
        entry = {"interruptId": interrupt["id"], "status": "resolved"}
        answer = run_input("s", "r2", resume=[{**entry, "payload": {"approved": True}}])
        await ann.run("asker", answer, params=TEXT)
        assert by_author(ann) == {below: "I am the last.", None: "So be it."}
        assert len(ann.children()) == 1


async def test_a_message_goes_on_with_what_a_child_wrote_while_it_waited_for_an_approval(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
        body: dict[str, Any] = {"id": "s", "messages": [said]}
        first = await http.post("/v1/ai-sdk/asker", json=body, params=TEXT)
        assert "text-delta" not in first.text
        below = await write_below(tasks)
        (pause,) = await tasks.pauses("s")
        approval = {"id": pause.pause_id, "approved": True}
        part = {"type": "dynamic-tool", "state": "approval-responded", "approval": approval}
        parts = [{**part, "toolCallId": pause.pause_id}]
        answered = {"id": "a", "role": "assistant", "parts": parts}
        body = {"id": "s", "messages": [said, answered]}
        rest = await http.post("/v1/ai-sdk/asker", json=body, params=TEXT)
        chunks = [json.loads(line[6:]) for line in rest.text.split("\n") if line[:7] == "data: {"]
        began = [each.get("providerMetadata") for each in chunks if each["type"] == "text-start"]
        assert began == [{"redis_state": {"task_id": below}}, None]
        deltas = [each["delta"] for each in chunks if each["type"] == "text-delta"]
        assert "".join(deltas) == "I am the last.So be it."
        # What the page has is not sent again.
        states = [each["data"]["state"] for each in chunks if each["type"] == "data-child"]
        assert states == ["ended"]


async def test_a_chat_is_stopped_as_a_whole_though_a_child_has_the_same_handler(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        await tasks.submit("clone", session_id="s", task_id="t")

        async def both() -> bool:
            return len((await tasks.find(session_id="s", handler="clone")).tasks) > 1

        await eventually(both, "the child is there")
        stopped = await http.post("/v1/ai-sdk/clone/s/stop")
        assert stopped.json()["task_id"] == "t"
        await tasks.wait("s", "t", timeout_s=30)


async def test_a_text_that_a_child_writes_again_takes_the_place_of_the_first(
    store: RedisStateStore,
) -> None:
    async with served(store, HANDLERS) as (tasks, http):
        ann = AgUiClient(http)
        async with ann.running("over", run_input("s", "t"), params=TEXT) as events:
            async for _ in events:
                if "first" in ann.text().values():
                    break
            below = await last_of(tasks, "fails_once")
            await tasks.signal("s", below, "fail")
            async for _ in events:
                pass
        assert by_author(ann) == {below: "second try"}
        assert ann.events[-1]["outcome"] == {"type": "success"}


async def test_lost_pieces_of_a_childs_text_are_replaced_after_a_restored_backup() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
        client_of(store) as tasks,
        over_http(store) as http,
    ):
        await tasks.submit("none", None, session_id="s", task_id="t")
        for row in (spawns("t", "c"), writes("other", "not of it"), writes("c", "kept ")):
            await store.save_update(row)
        await server.mark()
        await store.save_update(writes("c", "lost ", 2))
        ann = AgUiClient(http)
        reading = asyncio.create_task(ann.connect("s", "t", params=TEXT))
        await eventually(lambda: by_author(ann) == {"c": "kept lost "}, "the run is read")
        await server.go_back()
        await store.save_update(writes("c", "new", 2))
        await eventually(lambda: by_author(ann) == {"c": "kept new"}, "the run continues")
        await tasks.cancel("s", "t")
        await reading
        late = await AgUiClient(http).connect("s", "t", params=TEXT)
        assert by_author(late) == {"c": "kept new"}


def test_an_open_stream_knows_so_many_texts_of_all_below_it_and_holds_none() -> None:
    parts = SubtreeParts("t", keeps_texts=False)
    for number in range(3 * MOST_SHOWN):
        child = f"c{number % 10}"
        parts.feed(writes(child, "a text", name=f"n{number}"))
        ended = writes(child, "", 2, name=f"n{number}")
        parts.feed(ended.model_copy(update={"content": {**ended.content, "end": True}}))
    assert len(parts.shown) <= 2 * MOST_SHOWN
    assert sum(len(each._texts) for each in parts.below.values()) <= 2 * MOST_SHOWN
    messages = [each for each in parts.shown.values() if isinstance(each, ShownMessage)]
    assert messages
    assert not any(each.text for each in messages)
    again = writes("c9", "again", name=f"n{3 * MOST_SHOWN - 1}")
    changed = again.model_copy(update={"content": {**again.content, "generation": "h"}})
    assert any(isinstance(part, TextDropped) for part in parts.feed(changed))


def test_a_task_that_pauses_ends_the_texts_below_it_which_begin_again() -> None:
    parts = SubtreeParts("t")
    began, added = parts.feed(writes("c", "one "))
    assert (began, added) == (
        TextBegan("c:a:g", "text", "c"),
        TextAdded("c:a:g", "text", "one ", "c"),
    )
    paused = StateUpdate(
        session_id="s",
        task_id="t",
        update_type=UpdateType.STATUS_CHANGE,
        content={"status": "PAUSED"},
    )
    assert TextEnded("c:a:g", "text", "c") in parts.feed(paused)
    # The text that a child wrote is not one of the task.
    assert not parts.wrote_text
    assert parts.feed(writes("c", "two", 2))[0] == began
    shown = parts.shown["c:a:g"]
    assert isinstance(shown, ShownMessage)
    assert (shown.text, shown.is_open) == ("one two", True)
    # Another's pause ends its own texts alone.
    parts.feed(writes("d", "three"))
    parts.feed(paused.model_copy(update={"task_id": "c"}))
    assert [each.author for each in parts.open_texts] == ["d"]


def test_a_subtree_has_so_many_levels_and_tasks_and_no_others() -> None:
    writer, subtree = FrameWriter("s"), TaskSubtree("t0")

    def has(row: StateUpdate) -> bool:
        return subtree.has(writer.frame(Entry("1-1", row)))

    assert not has(writes("t1", "a stranger"))
    # Whom a stranger names is none.
    assert not has(spawns("stranger", "t1"))
    for level in range(DEEPEST):
        assert has(spawns(f"t{level}", f"t{level + 1}"))
    assert has(spawns(f"t{DEEPEST}", "too deep"))
    assert not has(writes("too deep", "x"))
    for number in range(MOST_TASKS):
        assert has(spawns("t0", f"c{number}"))
    assert has(writes(f"c{MOST_TASKS - DEEPEST - 2}", "x"))
    assert not has(writes(f"c{MOST_TASKS - DEEPEST - 1}", "x"))
