"""A task is made again from its input, or from a point in its journal, with a life of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    InvalidField,
    ReceiveTimeout,
    RetryRefused,
    TaskFailed,
    TaskUnknown,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, becomes, pool, updates_of
from tests.support.tasks.bookings import Bookings
from tests.support.tasks.work import Work


async def test_a_rerun_is_a_new_task_of_the_same_input(store: RedisStateStore) -> None:
    async def echo(ctx: TaskContext) -> Any:
        return ctx.input

    async with pool(store, {"h": echo}) as client:
        task = await client.submit(
            "h", {"n": 1}, session_id=SESSION, attributes={"a": 1}, priority=3, description="d"
        )
        await client.result(SESSION, task)
        again = await client.rerun(SESSION, task)
        assert again != task
        assert await client.result(SESSION, again) == {"n": 1}
        view = await client.inspect(SESSION, again)
        assert view is not None
        assert view.rerun_of is not None
        assert (view.rerun_of.session_id, view.rerun_of.task_id) == (SESSION, task)
        assert (view.attributes, view.state.priority, view.state.description) == ({"a": 1}, 3, "d")
        named = await client.rerun(SESSION, task, new_task_id="n", new_session_id="other")
        assert await client.rerun(SESSION, task, new_task_id="n", new_session_id="other") == named
        assert await client.result("other", "n") == {"n": 1}
        found = (await client.find(attributes={"a": 1})).tasks
        assert len(found) == 3
        assert [one.rerun_of.task_id for one in found if one.rerun_of] == [task, task]


async def test_a_fork_begins_with_the_journal_up_to_its_step(store: RedisStateStore) -> None:
    work = Work("")
    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id=SESSION)
        assert await client.result(SESSION, task) == ["a1", "b1", "c1"]
        for before, result in (
            ("c", ["a1", "b1", "c2"]),
            ("step:b#1", ["a1", "b2", "c3"]),
            ("a#1", ["a2", "b3", "c4"]),
            (None, ["a1", "b1", "c1"]),
        ):
            forked = await client.fork(SESSION, task, before=before)
            assert await client.result(SESSION, forked) == result
            view = await client.inspect(SESSION, forked)
            assert view is not None
            assert view.forked_from is not None
            assert view.forked_from.task_id == task
            kinds = [one.update_type.value for one in await updates_of(store, forked)]
            assert kinds.count("PROGRESS") == 1
            steps = await client.snapshots(SESSION, forked)
            assert [step.version for step in steps] == [1, 2, 3]
        for before in ("d", "b#2", ""):
            with pytest.raises(InvalidField, match="before"):
                await client.fork(SESSION, task, before=before)


async def test_a_fork_has_pauses_and_children_of_its_own(store: RedisStateStore) -> None:
    work = Work("")

    async def flow(ctx: TaskContext) -> Any:
        one = await ctx.join(await ctx.spawn("child", name="one"))
        first = await ctx.pause("first")
        texts = [event.payload["text"] for event in await ctx.inbox.wait()]
        charged = await ctx.step("charge", work.step, "a")
        second = await ctx.pause("second")
        two = await ctx.join(await ctx.spawn("child", name="two"))
        return [one, first.value, texts, charged, second.value, two]

    async def child(_: TaskContext) -> str:
        return work.step("child")

    async def decide(client: Any, task: str, value: str) -> str:
        # It is paused while it waits for a child, too.
        async def asked() -> str | None:
            pauses = [each.token for each in await client.pauses(SESSION) if each.task_id == task]
            state = await client.get(SESSION, task)
            return pauses[0] if pauses and state.status is TaskStatus.PAUSED else None

        token = await eventually(asked, f"{task} asks")
        await client.approve(token, value)
        return str(token)

    async with pool(store, {"h": flow, "child": child}) as client:
        task = await client.submit("h", session_id=SESSION)
        await decide(client, task, "yes")
        message = {"text": "now"}
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, message)
        token = await decide(client, task, "also")
        first = await client.result(SESSION, task)
        assert first == ["child1", "yes", ["now"], "a1", "also", "child2"]
        forked = await client.fork(SESSION, task, before="charge")
        assert await decide(client, forked, "other") != token
        assert await client.result(SESSION, forked) == [
            *("child1", "yes", ["now"], "a2", "other", "child3")
        ]
        forked = await client.fork(SESSION, task, before="two")
        assert (await client.result(SESSION, forked))[3:] == ["a1", "also", "child4"]
        forked = await client.fork(SESSION, task, before="first")
        await decide(client, forked, "anew")
        await client.steer(SESSION, forked, SteeringEventType.USER_MESSAGE, {"text": "later"})
        await decide(client, forked, "last")
        assert await client.result(SESSION, forked) == [
            *("child1", "anew", ["later"], "a3", "last", "child5")
        ]


async def test_a_key_that_begins_with_another_ones_is_beside_it_and_not_inside(
    store: RedisStateStore,
) -> None:
    work = Work("")

    async def read(ctx: TaskContext, name: str) -> str:
        return await ctx.step("open", work.step, name)

    async def flow(ctx: TaskContext) -> Any:
        return [
            await ctx.keyed_step("read", key, read, ctx, key) for key in ("src/a", "src", "src/b")
        ]

    async with pool(store, {"h": flow}) as client:
        task = await client.submit("h", session_id=SESSION)
        assert await client.result(SESSION, task) == ["src/a1", "src1", "src/b1"]
        forked = await client.fork(SESSION, task, before="read#=src")
        assert await client.result(SESSION, forked) == ["src/a1", "src2", "src/b2"]
        forked = await client.fork(SESSION, task, before="read#=src/b")
        assert await client.result(SESSION, forked) == ["src/a1", "src1", "src/b3"]
        with pytest.raises(InvalidField, match="inside of 'step:read#=src/b'"):
            await client.fork(SESSION, task, before="read#=src/b/open#1")


async def test_a_fork_has_the_messages_that_were_received_before(store: RedisStateStore) -> None:
    work, odd = Work(""), "\N{GRINNING FACE}#1/x"

    async def flow(ctx: TaskContext) -> Any:
        first = await ctx.receive(odd, hold_s=0)
        asked = await ctx.receive_request("ask")
        await asked.reply("yes")
        with pytest.raises(ReceiveTimeout):
            await ctx.receive("never", timeout=timedelta(milliseconds=1), hold_s=0)
        charged = await ctx.step("charge", work.step, "a")
        # Sent before the step, received after it.
        inside = await ctx.step("work", ctx.receive, odd)
        return [first, asked.payload, charged, inside, await ctx.receive(odd, hold_s=0)]

    async with pool(store, {"h": flow}) as client:
        task = await client.submit("h", session_id=SESSION)
        for number in range(3):
            await client.signal(SESSION, task, odd, number)
        assert await client.request(SESSION, task, "ask", "?") == "yes"
        assert await client.result(SESSION, task) == [0, "?", "a1", 1, 2]
        whole = await client.fork(SESSION, task)
        assert await client.result(SESSION, whole, timeout_s=20) == [0, "?", "a1", 1, 2]
        forked = await client.fork(SESSION, task, before="charge")
        for number in range(10, 12):
            await client.signal(SESSION, forked, odd, number)
        assert await client.result(SESSION, forked, timeout_s=20) == [0, "?", "a2", 10, 11]
        # A fork of the fork has them too.
        again = await client.fork(SESSION, forked, before="work")
        for number in range(20, 22):
            await client.signal(SESSION, again, odd, number)
        assert await client.result(SESSION, again, timeout_s=20) == [0, "?", "a2", 20, 21]


async def test_a_fork_does_not_keep_what_was_undone(store: RedisStateStore) -> None:
    work = Work("b")

    async def trip(ctx: TaskContext) -> list[str]:
        done = [await ctx.step("a", work.step, "a")]
        ctx.on_failure(work.step, "undo")
        return [*done, await ctx.step("b", work.step, "b")]

    async with pool(store, {"h": trip}) as client:
        task = await client.submit("h", session_id=SESSION)
        with pytest.raises(TaskFailed, match="undone"):
            await client.result(SESSION, task)
        work.bad = ""
        with pytest.raises(RetryRefused, match="was undone"):
            await client.fork(SESSION, task)
        forked = await client.fork(SESSION, task, before="a")
        assert await client.result(SESSION, forked) == ["a2", "b2"]


async def test_a_fork_undoes_what_it_has_done_itself_and_its_source_the_rest(
    store: RedisStateStore,
) -> None:
    world = Bookings()

    async def trip(ctx: TaskContext) -> None:
        for what in ("car", "hotel"):
            receipt = await ctx.step(what, world.book, f"{what} {ctx.task.task_id}")
            ctx.on_failure(world.undo, receipt, on_cancel=True)
        if not (await ctx.approval("fly?")).approved:
            raise ValueError("no flight")

    async with pool(store, {"h": trip}) as client:
        await client.submit("h", session_id=SESSION, task_id="a")
        await becomes(client, "a", TaskStatus.PAUSED)
        forks = {"b": "hotel", "c": None, "d": "car"}
        for task, before in forks.items():
            await client.fork(SESSION, "a", before=before, new_task_id=task)
            await becomes(client, task, TaskStatus.PAUSED)
        again = await client.fork(SESSION, "b", new_task_id="e")
        await becomes(client, again, TaskStatus.PAUSED)
        # Nothing of a fork's own is left to do.
        await client.cancel(SESSION, "c")
        await becomes(client, "c", TaskStatus.CANCELLED)
        found = {
            task: [
                (one.name, one.state, one.error)
                for one in await client.compensations(SESSION, task)
            ]
            for task in "abcde"
        }
        mine = [(f"undo#{number}", "registered", None) for number in (1, 2)]
        others = [(f"undo#{number}", "source", None) for number in (1, 2)]
        assert found == {
            "a": mine,
            "b": [others[0], mine[1]],
            "c": others,
            "d": mine,
            "e": others,
        }
        errors: dict[str, str | None] = {}
        for task in "ebad":
            (pause,) = [one for one in await client.pauses(SESSION) if one.task_id == task]
            assert pause.token is not None
            await client.reject(pause.token)
            errors[task] = (await client.wait(SESSION, task, timeout_s=60)).error
    assert errors == {
        "e": "ValueError: no flight",
        "b": "ValueError: no flight; undone: undo#2; not undone: undo#1 (of the source)",
        "a": "ValueError: no flight; undone: undo#2, undo#1",
        "d": "ValueError: no flight; undone: undo#2, undo#1",
    }
    done = [line.removeprefix("undo receipt of ") for line in world.log if line.startswith("undo")]
    assert done == ["hotel b", "hotel a", "car a", "hotel d", "car d"]


async def test_a_fork_takes_large_results_along(store: RedisStateStore) -> None:
    async def flow(ctx: TaskContext) -> int:
        large = await ctx.step("large", lambda: "x" * 3_000_000)
        await ctx.step("end", lambda: 1)
        return len(large)

    async with pool(store, {"h": flow}) as client:
        task = await client.submit("h", session_id=SESSION)
        assert await client.result(SESSION, task) == 3_000_000
        forked = await client.fork(SESSION, task, before="end")
        assert await client.result(SESSION, forked) == 3_000_000
        await store.clear_session(SESSION)
        with pytest.raises(TaskUnknown):
            await client.fork(SESSION, task)
