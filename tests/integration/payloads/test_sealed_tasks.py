"""Payloads are sealed wherever they stand, and read by whoever has a key."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import RedisStateStore, Sealed, Settings
from redis_state.errors import (
    PayloadTooLarge,
    PayloadUnreadable,
    RetryRefused,
    TaskFailed,
    TokenResolved,
)
from redis_state.models import (
    SteeringEventType,
    TaskContextSnapshot,
    TaskStatus,
    UpdateType,
)
from redis_state.testing import eventually
from redis_state.worker import Schedule, TaskClient, TaskContext
from redis_state.worker.runs import run_task
from redis_state.worker.runs.replaying import ReplayVerdict, replay_history
from redis_state.worker.tasks.histories import read_history
from tests.support.payloads import KEYS, REVERSED, dump, opened, with_keys
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool, updates_of

MARK = "marker-of-what-nobody-may-read"
ODD: list[Any] = ["", None, float("nan"), {"a": [1, None, "\ud800", 2**80]}, "x" * 1_000_000]


def told(text: str) -> str:
    """Make a payload that is recognised wherever it stands."""
    return f"{MARK} {text}"


def fail() -> None:
    """Fail as a step that the handler handles."""
    raise ValueError(told("failure"))


async def everything(ctx: TaskContext) -> Any:
    """Do all that has a payload."""
    assert ctx.input == {"x": told("input")}
    assert ctx.task.description == told("description")
    assert ctx.task.context_snapshot.query == told("query")

    async def undo(receipt: str) -> None:
        assert receipt == told("step")
        await ctx.progress(told("undone"))

    receipt = await ctx.step("charge", lambda: told("step"))
    ctx.on_failure(undo, receipt)
    large = await ctx.step("large", lambda: told("large") * 10_000)
    assert len(large) > 100_000
    with pytest.raises(ValueError, match=told("failure")):
        await ctx.step("fail", fail)
    child = await ctx.spawn("child", {"y": told("child input")}, description=told("child"))
    assert await ctx.join(child) == told("child result")
    await ctx.progress(told("progress"))
    await ctx.tool_call("tool", told("arguments"), told("tool result"))
    await ctx.publish_value("value", told("value"))
    async with ctx.text("answer") as out:
        out.write(told("text"))
    branch = asyncio.create_task(ctx.branch("b").progress(told("branch")))
    await branch
    assert await ctx.receive("signal") == told("signal")
    request = await ctx.receive_request("request")
    assert request.payload == told("request")
    await request.reply(told("reply"))
    events = await ctx.inbox.wait()
    assert events[0].payload["text"] == told("steering")
    form = {"type": "object", "description": told("form"), "properties": {"v": {"type": "string"}}}
    decision = await ctx.pause(
        told("reason"),
        {"q": told("question")},
        name="p",
        schema=form,
        of=("ann", "ben"),
        approvals=2,
    )
    assert decision.value == {"v": told("decision")}
    assert [vote.value for vote in decision.votes] == [{"v": told("vote")}, {"v": told("decision")}]
    late = await ctx.pause(
        "late",
        name="late",
        timeout=timedelta(milliseconds=50),
        on_timeout="resume",
        default=told("default"),
    )
    assert late.value == told("default")
    if ctx.attributes.get("fails"):
        raise RuntimeError(told("error"))
    return {"z": told("result")}


async def child(ctx: TaskContext) -> str:
    """Be somebody's child."""
    assert ctx.input == {"y": told("child input")}
    await ctx.step("own", lambda: told("step of a child"))
    return told("child result")


HANDLERS: dict[str, Any] = {"everything": everything, "child": child}


async def run_everything(client: TaskClient, *, fails: bool) -> str:
    """Run a task through all of it, up to its end; return its id."""
    task = await client.submit(
        "everything",
        {"x": told("input")},
        session_id=SESSION,
        description=told("description"),
        attributes={"fails": True} if fails else {"tenant": "acme"},
        context=TaskContextSnapshot(session_id=SESSION, task_id="t", query=told("query")),
    )
    await client.signal(SESSION, task, "signal", told("signal"))
    reply = await client.request(SESSION, task, "request", told("request"), timeout_s=60)
    assert reply == told("reply")
    await client.steer(
        SESSION,
        task,
        SteeringEventType.INJECT_CONTEXT,
        {"text": told("steering"), "severity": "note"},
    )
    token = await open_token(client.store, task)
    ann = await client.approve(token, {"v": told("vote")}, actor="ann", idempotency_key="a")
    assert ann is not None
    # The same vote again is the same vote, though it is sealed as another text.
    await client.approve(token, {"v": told("vote")}, actor="ann", idempotency_key="a")
    await client.approve(token, {"v": told("decision")}, actor="ben", idempotency_key="b")
    await client.approve(token, {"v": told("decision")}, actor="ben", idempotency_key="b")
    with pytest.raises(TokenResolved) as taken:
        await client.approve(token, {"v": told("other")}, actor="ben", idempotency_key="b")
    assert MARK not in str(taken.value)
    await client.wait(SESSION, task, timeout_s=60)
    return task


@pytest.mark.role("admin")
@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_payload_is_in_the_server_or_the_log(
    settings: Settings, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(settings, KEYS[0]) as store, pool(store, HANDLERS) as client:
        task = await run_everything(client, fails=fails)
        await client.schedules.save(
            Schedule(
                schedule_id="nightly",
                handler="child",
                session_id="scheduled",
                input={"y": told("child input")},
                description=told("scheduled"),
                cron="0 0 1 1 *",
            )
        )
        again = await client.schedules.save((await client.schedules.get("nightly")).schedule)
        made = await client.schedules.trigger("nightly", idempotency_key="k")
        assert await client.result("scheduled", made.task_id, timeout_s=60) == told("child result")
        state = await client.get(SESSION, task)
        assert state is not None
        if fails:
            with pytest.raises(TaskFailed) as failed:
                await client.result(SESSION, task)
            assert told("error") in (state.error or "")
            assert failed.value.args
        else:
            assert await client.result(SESSION, task) == {"z": told("result")}
            assert await client.value(SESSION, task, "value") == told("value")
        contents = str([update.content for update in await updates_of(store, task)])
        for part in ("progress", "text", "branch", "tool result", "question"):
            assert told(part) in contents
        found = await client.find(attributes={"fails": True} if fails else {"tenant": "acme"})
        assert [each.task_id for each in found.tasks] == [task]
        assert again.schedule.input == {"y": told("child input")}
        kept = await dump(store)
        assert sum(b"sealed:f:" in held for held in kept.values()) >= 6
        assert [key for key, held in kept.items() if MARK.encode() in held] == []
    assert [record.getMessage() for record in caplog.records if MARK in caplog_text(record)] == []


def caplog_text(record: logging.LogRecord) -> str:
    """Return all that a log's record says."""
    return f"{record.getMessage()} {record.exc_info} {record.exc_text}"


@pytest.mark.role("admin")
async def test_without_keys_the_same_task_is_found_in_the_server(settings: Settings) -> None:
    async with opened(settings) as store, pool(store, HANDLERS) as client:
        await run_everything(client, fails=False)
        kept = await dump(store)
        assert len([key for key, held in kept.items() if MARK.encode() in held]) >= 5


async def test_keys_are_replaced_one_by_one_and_clear_data_stays_readable(
    settings: Settings,
) -> None:
    async with opened(settings) as clear, client_of(clear) as client:
        await client.submit("child", {"y": "clear"}, session_id=SESSION, task_id="clear")
    for number, keys in enumerate(((KEYS[0],), (KEYS[1], KEYS[0]), (KEYS[2], KEYS[1], KEYS[0]))):
        async with opened(settings, *keys) as store, client_of(store) as client:
            task_id = f"t{number}"
            await client.submit("child", {"y": number}, session_id=SESSION, task_id=task_id)

    async def inputs(ctx: TaskContext) -> Any:
        return ctx.input["y"]

    async with (
        opened(settings, *reversed(KEYS)) as store,
        pool(store, {"child": inputs}) as client,
    ):
        results = [
            await client.result(SESSION, name, timeout_s=60) for name in ("clear", "t0", "t1", "t2")
        ]
        assert results == ["clear", 0, 1, 2]


@pytest.mark.parametrize("value", ODD, ids=["empty", "None", "NaN", "odd", "1 MB"])
async def test_odd_values_come_back_as_they_do_in_the_clear(settings: Settings, value: Any) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        return [ctx.input, await ctx.step("s", lambda: value)]

    results: list[Any] = []
    for keys in ((), (KEYS[0],)):
        async with opened(settings, *keys) as store, pool(store, {"h": handler}) as client:
            task = await client.submit("h", value, session_id=SESSION)
            results.append(await client.result(SESSION, task, timeout_s=60))
    assert results[0] == results[1]


async def test_a_process_without_keys_leaves_tasks_as_they_are_and_operates_on_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_task, "_UNREADABLE_S", 0.25)
    ran: list[str] = []

    async def handler(ctx: TaskContext) -> str:
        ran.append("with keys")
        await ctx.step("s", lambda: told("step"))
        decision = await ctx.pause("p", timeout=timedelta(hours=1))
        return f"{told('end')} {decision.value}"

    async def never(_: TaskContext) -> None:
        ran.append("without keys")

    async with (
        opened(settings, KEYS[0]) as store,
        opened(settings) as blind_store,
        client_of(blind_store) as blind,
    ):
        async with client_of(store) as client:
            await client.submit("h", told("input"), session_id=SESSION, task_id="one")
        async with pool(blind_store, {"h": never}):
            given_back = lambda: _was_given_back(store, "one")  # noqa: E731
            await eventually(given_back, "a worker without keys gives it back")
            async with client_of(store) as client:
                await client.submit("h", told("input"), session_id=SESSION, task_id="two")
            state = await blind.get(SESSION, "one")
            assert state is not None
            assert state.status is not TaskStatus.FAILED
            async with pool(store, {"h": handler}) as client:
                await becomes(client, "one", TaskStatus.PAUSED, timeout_s=60)
                await becomes(client, "two", TaskStatus.PAUSED, timeout_s=60)
                token = await open_token(store, "one")
                await client.approve(token, told("decision"))
                done = await becomes(client, "one", TaskStatus.COMPLETE, timeout_s=60)
                assert done.result == told(f"end {told('decision')}")
        assert set(ran) == {"with keys"}
        view = await blind.inspect(SESSION, "two")
        assert view is not None
        # The second was not even started by a worker that had met the first.
        assert view.attempts == 1
        shown = await blind.get(SESSION, "one")
        assert shown is not None
        assert type(shown.result) is Sealed
        assert str(shown.result) == "<encrypted>"
        with pytest.raises(PayloadUnreadable, match="result of task 'one'"):
            await blind.result(SESSION, "one")
        assert await blind.cancel(SESSION, "two", reason="no need")
        made = await blind.rerun(SESSION, "one", new_task_id="again")
        forked = await blind.fork(SESSION, "one", new_task_id="fork")
        async with pool(store, {"h": handler}) as client:
            await client.approve(await open_token(store, made), 1)
            assert await client.result(SESSION, made, timeout_s=60) == f"{told('end')} 1"
            ended = await client.result(SESSION, forked, timeout_s=60)
            assert ended == told(f"end {told('decision')}")


async def test_a_process_without_keys_retries_what_does_not_depend_on_the_error(
    settings: Settings,
) -> None:
    fails = {"step", "child"}

    async def failing(name: str) -> str:
        if name in fails:
            raise ValueError(told(name))
        return name

    async def step(ctx: TaskContext) -> str:
        return await ctx.step("s", failing, "step")

    async def child(_: TaskContext) -> str:
        return await failing("child")

    async def parent(ctx: TaskContext) -> Any:
        return await ctx.join(await ctx.spawn("child"))

    async def missed(ctx: TaskContext) -> Any:
        return await ctx.receive("go", timeout=timedelta(milliseconds=1))

    async def undone(ctx: TaskContext) -> None:
        ctx.on_failure(list, name="undo")
        raise ValueError(told("undone"))

    handlers: dict[str, Any] = {"step": step, "child": child, "parent": parent}
    handlers |= {"missed": missed, "undone": undone}
    async with (
        opened(settings, KEYS[0]) as store,
        opened(settings) as blind_store,
        client_of(blind_store) as blind,
        pool(store, handlers) as client,
    ):
        for name in ("step", "parent", "missed", "undone"):
            await client.submit(name, session_id=SESSION, task_id=name)
            await becomes(client, name, TaskStatus.FAILED)
        fails.clear()
        for name in ("parent", "missed"):
            with pytest.raises(PayloadUnreadable, match=f"error of task '{name}' cannot be read"):
                await blind.retry(SESSION, name)
            state = await client.get(SESSION, name)
            assert state is not None
            assert state.status is TaskStatus.FAILED
        with pytest.raises(RetryRefused, match="was undone"):
            await blind.retry(SESSION, "undone")
        await blind.retry(SESSION, "step")
        assert await client.result(SESSION, "step", timeout_s=60) == "step"
        await client.retry(SESSION, "parent")
        assert await client.result(SESSION, "parent", timeout_s=60) == "child"


@pytest.mark.role("admin")
async def test_gathered_inputs_are_sealed_one_by_one(settings: Settings) -> None:
    async def handler(ctx: TaskContext) -> Any:
        return ctx.input

    later = timedelta(hours=1)
    async with (
        opened(settings, KEYS[0]) as store,
        opened(settings) as blind_store,
        client_of(blind_store) as blind,
        client_of(store) as client,
    ):
        for name in ("a", "b"):
            task = await client.batch(
                "h", told(name), session_id=SESSION, after=later, most=2, item_id=name
            )
        last = await client.debounce(
            "h", told("last"), session_id=SESSION, wait=timedelta(milliseconds=50)
        )
        kept = await dump(store)
        assert [key for key, held in kept.items() if MARK.encode() in held] == []
        async with pool(store, {"h": handler}):
            assert await client.result(SESSION, task, timeout_s=60) == [told("a"), told("b")]
            assert await client.result(SESSION, last, timeout_s=60) == told("last")
            again = await client.rerun(SESSION, task)
            assert await client.result(SESSION, again, timeout_s=60) == [told("a"), told("b")]
        with pytest.raises(PayloadUnreadable, match=f"input of task '{task}'"):
            await blind.rerun(SESSION, task)


async def _was_given_back(store: RedisStateStore, task: str) -> bool:
    told_of = [
        update.content
        for update in await updates_of(store, task)
        if update.update_type is UpdateType.STATUS_CHANGE
    ]
    return any("cannot be read" in str(content.get("reason")) for content in told_of)


async def test_a_sealed_task_is_replayed_retried_and_forked(settings: Settings) -> None:
    fail = [True]

    async def handler(ctx: TaskContext) -> str:
        one = await ctx.step("one", lambda: told("one"))
        if fail[0]:
            raise ValueError(told("fails"))
        return str(one + await ctx.step("two", lambda: told("two")))

    async with opened(settings, KEYS[0]) as store, pool(store, {"h": handler}) as client:
        task = await client.submit("h", told("input"), session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        fail[0] = False
        history = await read_history(store, SESSION, task)
        assert history is not None
        assert history.input == told("input")
        report = await replay_history({"h": handler}, history)
        assert report.verdict is ReplayVerdict.FITS
        async with opened(settings) as blind:
            with pytest.raises(PayloadUnreadable):
                await read_history(blind, SESSION, task)
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task, timeout_s=60) == told("one") + told("two")
        fork = await client.fork(SESSION, task, before="two")
        assert await client.result(SESSION, fork, timeout_s=60) == told("one") + told("two")


async def test_a_payload_that_is_too_large_is_refused_where_it_is_given(
    settings: Settings,
) -> None:
    seen: list[PayloadTooLarge] = []
    large = "x" * 2_000

    async def handler(ctx: TaskContext) -> str:
        with pytest.raises(PayloadTooLarge) as step:
            await ctx.step("s", lambda: large)
        with pytest.raises(PayloadTooLarge) as update:
            await ctx.progress(large)
        with pytest.raises(PayloadTooLarge) as spawn:
            await ctx.spawn("h", large)
        seen.extend((step.value, update.value, spawn.value))
        return large

    async with (
        opened(settings, KEYS[0], max_payload_bytes=1_000) as store,
        pool(store, {"h": handler}) as client,
    ):
        with pytest.raises(PayloadTooLarge) as given:
            await client.submit("h", large, session_id=SESSION, task_id="t")
        assert (given.value.field, given.value.size, given.value.limit) == ("input", 2_002, 1_000)
        assert await client.get(SESSION, "t") is None
        task = await client.submit("h", session_id=SESSION)
        state = await becomes(client, task, TaskStatus.FAILED)
        assert (state.error or "").startswith("PayloadTooLarge: result: has 2002 bytes")
        fields = [error.field for error in seen]
        assert fields == ["result of step:s#1", "content", "task_input"]


@pytest.mark.role("admin")
async def test_a_codec_of_ones_own_seals_and_keys_still_read(settings: Settings) -> None:
    async def handler(ctx: TaskContext) -> Any:
        return [ctx.input, await ctx.step("s", lambda: told("step"))]

    async with opened(settings, KEYS[0]) as store, client_of(store) as client:
        await client.submit("h", told("before"), session_id=SESSION, task_id="before")
    own = with_keys(settings, KEYS[0], payload_codec=REVERSED)
    async with RedisStateStore(own) as store, pool(store, {"h": handler}) as client:
        task = await client.submit("h", told("after"), session_id=SESSION)
        assert await client.result(SESSION, task, timeout_s=60) == [told("after"), told("step")]
        assert (await client.result(SESSION, "before", timeout_s=60))[0] == told("before")
        kept = await dump(store)
        assert any(b"sealed:c:" in held for held in kept.values())
        assert [key for key, held in kept.items() if MARK.encode() in held] == []
