"""The stream of one task: its rows, its end, and no right to decide it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.gateway.streaming.hub import Hub
from redis_state.models import (
    StateUpdate,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.worker import TaskContext
from redis_state.worker.tasks.new_tasks import NewTasks
from tests.support.http.event_streams import Events, read_events
from tests.support.processes.pools import SESSION, becomes, pool

pytestmark = pytest.mark.worker


async def test_a_task_is_streamed_to_its_end_and_its_tokens_are_not(store: RedisStateStore) -> None:
    tokens: list[str] = []

    async def ask(ctx: TaskContext) -> str:
        pause = await ctx.open_pause("deploy?", {"resume_token": "of a host"})
        tokens.append(pause.token)
        await ctx.progress(f"https://example.org/decide/{pause.token}")
        decision = await ctx.wait_for(pause)
        return "yes" if decision.approved else "no"

    async with pool(store, {"ask": ask}) as client, Hub(store) as hub:
        task = await client.submit("ask", session_id=SESSION)
        await client.submit("ask", session_id=SESSION, task_id="another")
        async with Events(hub.frames(SESSION, task_id=task)) as stream:
            seen = await stream.take(1)
            while seen[-1].name != "CHECKPOINT":
                seen += await stream.take(1)
            await client.approve(seen[-1].content["pause_id"], actor="ann")
            rest = await stream.rest()
    seen += [event for event in rest if event.retry is None]
    assert seen[-1].name == "end"
    assert seen[-1].data == {"task_id": task, "status": "COMPLETE"}
    assert seen[-1].cursor is None
    rows = seen[:-1]
    assert {event.data["task_id"] for event in rows} == {task}
    kept = await store.list_updates(SESSION, task_id=task)
    assert [event.data["update_id"] for event in rows] == [each.update_id for each in kept]
    everything = "".join(event.text for event in seen)
    assert tokens
    assert not [token for token in tokens if token.rpartition(".")[2] in everything]
    assert "of a host" not in everything
    assert len({event.data["run"] for event in rows if event.name == "PROGRESS"}) == 1


async def test_a_terminal_task_is_read_to_its_end(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> None:
        for n in range(40):
            await ctx.progress("working", step=n)

    async with pool(store, {"work": work}) as client, Hub(store) as hub:
        task = await client.submit("work", session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
        events = await read_events(hub.frames(SESSION, task_id=task))
        assert len(events) == len(await store.list_updates(SESSION, task_id=task)) + 1
        assert events[-1].name == "end"
        # With nothing left to read it ends at once.
        (end,) = await read_events(hub.frames(SESSION, task_id=task, after=events[-2].cursor))
        assert end.data["status"] == "COMPLETE"
        # Also where the row that says so is none of those wanted.
        only = await read_events(hub.frames(SESSION, task_id=task, types=[UpdateType.PROGRESS]))
        assert [event.name for event in only] == ["PROGRESS"] * 40 + ["end"]


async def test_a_large_log_of_a_terminal_task_comes_before_its_end(store: RedisStateStore) -> None:
    async def work(ctx: TaskContext) -> None:
        for n in range(8):
            await ctx.progress("x" * 90_000, step=n)

    async with pool(store, {"work": work}) as client, Hub(store) as hub:
        task = await client.submit("work", session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
        events = await read_events(hub.frames(SESSION, task_id=task))
    steps = [event.data["step_index"] for event in events if event.name == "PROGRESS"]
    assert (steps, events[-1].name) == (list(range(8)), "end")


async def test_a_task_that_is_retried_has_not_ended(store: RedisStateStore) -> None:
    fails = True

    async def work(ctx: TaskContext) -> None:
        await ctx.progress("working")
        if fails:
            msg = "no"
            raise ValueError(msg)

    async with pool(store, {"work": work}) as client, Hub(store) as hub:
        task = await client.submit("work", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        (*_, end) = await read_events(hub.frames(SESSION, task_id=task))
        assert end.data["status"] == "FAILED"
        fails = False
        await client.retry(SESSION, task)
        events = await read_events(hub.frames(SESSION, task_id=task))
        ends = [e.content["status"] for e in events if e.name == "STATUS_CHANGE"]
        assert "FAILED" in ends
        assert ends[-1] == "COMPLETE"
        assert events[-1].data["status"] == "COMPLETE"


async def test_the_end_of_a_deleted_session_is_noticed(store: RedisStateStore) -> None:
    async def wait(ctx: TaskContext) -> None:
        await ctx.approval("go on?")

    async with pool(store, {"wait": wait}) as client, Hub(store, heartbeat_s=0.05) as hub:
        task = await client.submit("wait", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        async with Events(hub.frames(SESSION, task_id=task, after="$")) as stream:
            await stream.opened()
            await store.clear_session(SESSION)
            rest = await stream.rest()
    assert rest[-1].name == "end"
    assert rest[-1].data["status"] is None


async def test_rows_of_others_move_a_client_on_without_waking_it(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(ctx: TaskContext) -> None:
        await ctx.approval("go on?")

    reads: list[str | None] = []
    read_updates = RedisStateStore.read_updates

    async def counted(self: RedisStateStore, session_id: str, **options: Any) -> Any:
        reads.append(options["task_id"])
        return await read_updates(self, session_id, **options)

    monkeypatch.setattr(RedisStateStore, "read_updates", counted)
    async with (
        pool(store, {"wait": wait}) as client,
        Hub(store, most_frames=8) as hub,
        Events(hub.frames(SESSION, after="$")) as all_rows,
    ):
        task = await client.submit("wait", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        await all_rows.opened()
        async with Events(hub.frames(SESSION, task_id=task, after="$")) as stream:
            await stream.opened()
            reading = asyncio.create_task(stream.rest())
            for n in range(100):
                quiet = StateUpdate(
                    session_id=SESSION,
                    task_id="other",
                    update_id=f"q{n}",
                    update_type=UpdateType.PROGRESS,
                    content="x",
                )
                await store.save_update(quiet)
                assert (await all_rows.take(1))[0].data["update_id"] == f"q{n}"
            await client.cancel(SESSION, task)
            rest = await reading
    assert {event.data["task_id"] for event in rest} == {task}
    assert rest[-1].data["status"] == "CANCELLED"
    # Only the last page, once the task was terminal.
    assert reads == [task]


async def test_a_client_sees_what_its_principal_may_see(store: RedisStateStore) -> None:
    def visible(update: StateUpdate) -> StateUpdate | None:
        if update.content["kind"] == "hidden":
            return None
        if update.content["kind"] == "plain":
            return update
        return update.model_copy(update={"content": {"kind": "cut"}})

    async with (
        Hub(store) as hub,
        Events(hub.frames("v", visible=visible)) as some,
        Events(hub.frames("v")) as all_of,
    ):
        for kind in ("plain", "secret", "hidden", "plain"):
            await store.save_update(
                StateUpdate(
                    session_id="v",
                    task_id="t",
                    update_type=UpdateType.PROGRESS,
                    content={"kind": kind, "more": "m"},
                )
            )
        everything, shown = await all_of.take(4), await some.take(3)
        assert [event.content["kind"] for event in everything] == [
            "plain",
            "secret",
            "hidden",
            "plain",
        ]
        assert [event.content for event in shown] == [
            {"kind": "plain", "more": "m"},
            {"kind": "cut"},
            {"kind": "plain", "more": "m"},
        ]
        assert [event.cursor for event in shown] == [everything[n].cursor for n in (0, 1, 3)]


async def test_what_a_filter_changes_in_place_is_hidden_and_rows_keep_their_run(
    store: RedisStateStore,
) -> None:
    async def work(ctx: TaskContext) -> str:
        await ctx.progress("private")
        return "private, too"

    def in_place(update: StateUpdate) -> StateUpdate:
        if update.update_type is not UpdateType.STATUS_CHANGE:
            update.content = {"hidden": True}
        return update

    def copying(update: StateUpdate) -> StateUpdate:
        return in_place(update.model_copy())

    async with pool(store, {"work": work}) as client, Hub(store) as hub:
        task = await client.submit("work", session_id=SESSION)
        await client.result(SESSION, task)
        whole = await read_events(hub.frames(SESSION, task_id=task))
        for visible in (in_place, copying):
            shown = await read_events(hub.frames(SESSION, task_id=task, visible=visible))
            assert "private" not in "".join(event.text for event in shown)
            assert [event.cursor for event in shown] == [event.cursor for event in whole]
            runs = [event.data.get("run") for event in whole]
            assert [event.data.get("run") for event in shown] == runs
            assert any(runs)
    assert "private" in "".join(event.text for event in whole)


@pytest.mark.parametrize("wanted", [{"task_id": "mine"}, {"types": [UpdateType.CHECKPOINT]}])
async def test_a_client_that_was_sent_no_row_lately_comes_back_without_a_gap(
    store: RedisStateStore, wanted: dict[str, Any]
) -> None:
    few = store.settings.model_copy(update={"max_updates_per_session": 20})
    context = TaskContextSnapshot(session_id=SESSION, task_id="mine")
    state = TaskState("mine", SESSION, TaskStatus.PENDING, TaskType.BACKGROUND, 0, context)
    async with RedisStateStore(few) as bounded:
        await NewTasks(bounded).create(state, handler="h", task_input=None)
        await bounded.save_update(_row("mine", UpdateType.CHECKPOINT))
        async with (
            Hub(bounded, heartbeat_s=0.05) as hub,
            Events(hub.frames(SESSION, **wanted)) as client,
        ):
            await client.take(1)
            for _ in range(50):
                await bounded.save_update(_row("other", UpdateType.PROGRESS))
            end, place = await bounded.updates.cursor(SESSION, None), None
            while place != end:
                (beat,) = await client.take(1)
                place = beat.cursor
        # Another gateway has the log alone.
        async with Hub(bounded) as hub, Events(hub.frames(SESSION, after=place, **wanted)) as late:
            await late.opened()
            await bounded.save_update(_row("mine", UpdateType.CHECKPOINT))
            (event,) = await late.take(1)
    assert event.name == "CHECKPOINT"


def _row(task_id: str, kind: UpdateType) -> StateUpdate:
    return StateUpdate(session_id=SESSION, task_id=task_id, update_type=kind, content="x")
