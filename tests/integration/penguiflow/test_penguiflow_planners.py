"""A real ReactPlanner in a pool of workers: paused in one, resumed in another, each thing once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")
pytest.importorskip("arq", reason="needs the worker extra")

from penguiflow.planner import ReactPlanner
from penguiflow.steering import SteeringCancelled

from redis_state import (
    BackendUnavailable,
    InvalidField,
    RedisStateStore,
    Settings,
    TokenResolved,
)
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.planners import (
    TaskInbox,
    answer_of,
    planner_handler,
    recorded_model,
)
from redis_state.integrations.penguiflow.tasks import once, running
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Decision, TaskContext
from tests.support.penguiflow.handlers import Effects, planner_of
from tests.support.penguiflow.pool import end, worker
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool
from tests.support.processes.worker_processes import has_begun
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy

pytestmark = pytest.mark.worker
DONE = ["look_up", "ask", "act"]


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    made = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    yield made
    await made.aclose()


async def steps(host: Any, task_id: str) -> list[str]:
    trajectory = await host.get_trajectory(f"job-{task_id}", SESSION)
    return [] if trajectory is None else [step.action.next_node for step in trajectory.steps]


async def answers(host: Any, task_id: str) -> list[str]:
    events = await host.list_planner_events(f"job-{task_id}")
    return [event.extra["user_input"] for event in events if event.event_type == "resume"]


async def has(effects: Effects, what: str) -> None:
    await eventually(lambda: bool(effects.read(what)), f"{what} was done", timeout_s=30)


async def test_a_planner_paused_in_a_killed_worker_goes_on_in_another(
    settings: Settings, store: RedisStateStore, host: Any, effects: Effects, tmp_path: Path
) -> None:
    async with client_of(store) as client:
        async with worker(settings, tmp_path, "first") as first:
            task = await client.submit("plan", "question", session_id=SESSION)
            token = await open_token(store, task)
            await becomes(client, task, TaskStatus.PAUSED)
            assert await steps(host, task) == ["look_up", "ask"]
            first.kill()
            await first.communicate()
        async with worker(settings, tmp_path, "second") as second:
            await client.approve(token, "yes", actor="ann")
            with pytest.raises(TokenResolved):
                await client.approve(token, "yes", actor="bob")
            ended = await becomes(client, task, TaskStatus.COMPLETE, timeout_s=30)
    result: Any = ended.result
    assert result["reason"] == "answer_complete"
    assert result["trace_id"] == f"job-{task}"
    assert "steps" not in result["metadata"]
    assert await steps(host, task) == DONE
    (looked,), (acted,) = effects.read("look_up"), effects.read("act")
    assert (looked["pid"], acted["pid"]) == (first.pid, second.pid)
    # Each question to the model was asked once: none of the first worker's again in the second.
    assert [line["done"] for line in effects.read("model")] == [0, 1, 2, 3]
    assert await answers(host, task) == ["yes"]
    kinds = [event.event_type for event in await host.list_planner_events(f"job-{task}")]
    assert "finish" in kinds


async def test_a_worker_killed_in_the_resumed_run_is_followed_and_no_tool_is_done_twice(
    settings: Settings, store: RedisStateStore, host: Any, effects: Effects, tmp_path: Path
) -> None:
    async with client_of(store) as client:
        async with worker(settings, tmp_path, "first", lease_s=1.0) as first:
            task = await client.submit("linger", "question", session_id=SESSION)
            await client.approve(await open_token(store, task))
            await has(effects, "linger")
            first.kill()
            await first.communicate()
        async with worker(settings, tmp_path, "second", lease_s=1.0) as second:
            await becomes(client, task, TaskStatus.COMPLETE, timeout_s=30)
    assert await steps(host, task) == [*DONE, "linger"]
    (acted,) = effects.read("act")
    assert acted["pid"] == first.pid
    assert [line["pid"] for line in effects.read("linger")] == [first.pid, second.pid]
    # The second worker got the first one's answers from the journal, and asked only the last.
    requested = [(line["pid"], line["done"]) for line in effects.read("model")]
    assert requested == [(first.pid, done) for done in range(4)] + [(second.pid, 4)]


async def test_a_worker_told_to_stop_hands_its_planner_over_with_all_of_its_events(
    settings: Settings, store: RedisStateStore, host: Any, effects: Effects, tmp_path: Path
) -> None:
    async with client_of(store) as client:
        async with worker(settings, tmp_path, "first", grace_s=0.2) as first:
            task = await client.submit("linger", "question", session_id=SESSION)
            await client.approve(await open_token(store, task))
            await has(effects, "linger")
            assert await end(first) == 0
            await becomes(client, task, TaskStatus.PENDING)
        kinds = [event.event_type for event in await host.list_planner_events(f"job-{task}")]
        assert "resume" in kinds
        assert kinds.count("tool_call_start") >= 3
        async with worker(settings, tmp_path, "second"):
            await becomes(client, task, TaskStatus.COMPLETE, timeout_s=30)
    assert len(effects.read("act")) == 1
    assert await steps(host, task) == [*DONE, "linger"]


async def test_eight_approvals_at_once_resume_a_planner_once(
    settings: Settings, store: RedisStateStore, effects: Effects, tmp_path: Path
) -> None:
    async with (
        client_of(store) as client,
        worker(settings, tmp_path, "first"),
        worker(settings, tmp_path, "second"),
    ):
        tasks = [await client.submit("plan", "q", session_id=SESSION) for _ in range(4)]
        for task in tasks:
            token = await open_token(store, task)
            calls = [client.approve(token, actor=str(number)) for number in range(8)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            lost = [one for one in outcomes if isinstance(one, BaseException)]
            assert [type(one) for one in lost] == [TokenResolved] * 7
        for task in tasks:
            await becomes(client, task, TaskStatus.COMPLETE, timeout_s=30)
    acted = effects.read("act")
    assert len(acted) == 4
    assert len({line["key"] for line in acted}) == 4


async def test_a_rejection_is_told_to_the_planner(
    store: RedisStateStore, host: Any, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, DONE))
    async with pool(store, {"plan": handler}) as client:
        task = await client.submit("plan", "question", session_id=SESSION)
        await client.reject(await open_token(store, task), "too early")
        await becomes(client, task, TaskStatus.COMPLETE)
    assert await answers(host, task) == ["rejected: too early"]


async def test_steering_reaches_the_planner_once_before_and_after_its_pause(
    store: RedisStateStore, host: Any, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, ["look_up", "ask", "look_up"]))
    reported = SteeringEventType.USER_MESSAGE
    async with client_of(store) as client:
        task = await client.submit("plan", "question", session_id=SESSION)
        await client.steer(SESSION, task, reported, {"text": "it is cold"})
        async with pool(store, {"plan": handler}) as served:
            token = await open_token(store, task)
            await becomes(served, task, TaskStatus.PAUSED)
            await client.steer(SESSION, task, reported, {"text": "it is hot"})
            await client.approve(token)
            await becomes(served, task, TaskStatus.COMPLETE)
    trajectory = await host.get_trajectory(f"job-{task}", SESSION)
    events = await host.list_planner_events(f"job-{task}")
    history = [one["payload"]["text"] for one in trajectory.metadata["steering_history"]]
    assert history == ["it is cold", "it is hot"]
    assert [event.event_type for event in events].count("steering_received") == 2
    heard = [line["heard"] for line in effects.read("model")]
    assert heard[0] == ["cold"]
    assert any("hot" in words for words in heard[2:])


async def test_a_planner_is_cancelled_in_the_middle_of_a_tool(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, ["linger"]))
    async with pool(store, {"plan": handler}) as client:
        task = await client.submit("plan", "question", session_id=SESSION)
        await has(effects, "linger")
        await client.cancel(SESSION, task, reason="enough")
        ended = await becomes(client, task, TaskStatus.CANCELLED)
    assert ended.error == "enough"


@pytest.mark.parametrize(
    ("task_input", "stated"),
    [
        (7, "input: a text or an object is needed, not int"),
        ({}, "query: text is needed, not NoneType"),
        ({"query": "q", "llm_context": []}, "llm_context: an object is needed, not list"),
        ({"query": "q", "other": 1}, "input: has no 'other'"),
    ],
)
async def test_an_input_that_is_none_fails_the_task_by_name(
    store: RedisStateStore, effects: Effects, task_input: Any, stated: str
) -> None:
    handler = planner_handler(planner_of(effects, ["look_up"]))
    async with pool(store, {"plan": handler}) as client:
        task = await client.submit("plan", task_input, session_id=SESSION)
        ended = await becomes(client, task, TaskStatus.FAILED)
    assert stated in str(ended.error)


async def test_a_tool_that_fails_is_left_to_the_planner(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, ["fail", "act"]))
    async with pool(store, {"plan": handler}) as client:
        task = await client.submit("plan", "question", session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
    assert len(effects.read("act")) == 1


async def test_a_pause_that_penguiflow_could_not_save_is_made_again(
    store: RedisStateStore, settings: Settings, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, DONE))
    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as far,
    ):
        with proxy.answer("open_token"):
            async with pool(far, {"plan": handler}) as client:
                task = await client.submit("plan", "question", session_id=SESSION)
                await client.approve(await open_token(store, task))
                await becomes(client, task, TaskStatus.COMPLETE, timeout_s=60)
    # The run that began again asked the model nothing that the first had asked.
    assert [line["done"] for line in effects.read("model")] == [0, 1, 2, 3]


async def test_a_planners_pause_lives_as_long_as_the_tasks(
    settings: Settings, effects: Effects
) -> None:
    short = settings.model_copy(update={"pause_ttl": timedelta(milliseconds=50)})
    async with (
        RedisStateStore(short) as store,
        pool(store, {"plan": planner_handler(planner_of(effects, DONE))}) as client,
    ):
        task = await client.submit("plan", "question", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        await passed(store, milliseconds=100)
        await client.approve(token)
        await becomes(client, task, TaskStatus.COMPLETE)


async def passed(store: RedisStateStore, *, milliseconds: int) -> None:
    async def now() -> int:
        seconds, micros = await store.transport.sender.send("TIME", repeatable=True)
        return int(seconds) * 1000 + int(micros) // 1000

    until = await now() + milliseconds

    async def over() -> bool:
        return await now() > until

    await eventually(over, "some time has passed on the server")


async def test_a_task_whose_trace_runs_here_already_fails_by_name(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = planner_handler(planner_of(effects, ["linger"]))
    async with pool(store, {"plan": handler}) as client:
        first = await client.submit("plan", "q", session_id=SESSION, trace_id="one")
        await has(effects, "linger")
        second = await client.submit("plan", "q", session_id=SESSION, trace_id="one")
        ended = await becomes(client, second, TaskStatus.FAILED)
        await client.cancel(SESSION, first)
        await becomes(client, first, TaskStatus.CANCELLED)
    assert "trace_id: another task with it runs here" in str(ended.error)


async def test_a_run_waits_for_an_earlier_one_of_its_task_that_does_not_stop_here(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.runs.execution.CLEAN_UP_S", 0.1)
    begun: list[int] = []
    let_go = asyncio.Event()

    async def plan(ctx: TaskContext) -> str:
        begun.append(ctx.attempt)
        with running(ctx):
            while len(begun) == 1 and not let_go.is_set():
                # A tool that does not let itself be cancelled.
                with suppress(asyncio.CancelledError):
                    await let_go.wait()
        return "done"

    async with pool(store, {"plan": plan}, task_timeout_s=0.3) as client:
        task = await client.submit("plan", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        await client.retry(SESSION, task)
        await eventually(lambda: len(begun) > 1, "the next run has begun")
        let_go.set()
        assert await client.result(SESSION, task, timeout_s=30) == "done"


async def test_a_models_cost_comes_back_from_its_note(store: RedisStateStore) -> None:
    requested: list[int] = []

    class Model:
        name = "model"

        async def complete(self, **_: Any) -> tuple[str, float]:
            requested.append(len(requested))
            return f"answer {len(requested)}", 0.5

    async def handler(ctx: TaskContext) -> list[Any]:
        model, again = recorded_model(Model(), ctx), recorded_model(Model(), ctx)
        requested = [(model, "a"), (model, "b"), (model, "a"), (again, "a")]
        stated = [await one.complete(messages=[{"content": text}]) for one, text in requested]
        return [*stated, again.name]

    async with pool(store, {"ask": handler}) as client:
        task = await client.submit("ask", session_id=SESSION)
        ended = await becomes(client, task, TaskStatus.COMPLETE)
    stated = [[f"answer {number}", 0.5] for number in (1, 2, 3, 1)]
    assert ended.result == [*stated, "model"]
    assert requested == [0, 1, 2]


def test_a_pause_cannot_have_one_key_for_all(effects: Effects) -> None:
    with pytest.raises(InvalidField, match="key"):
        planner_handler(planner_of(effects), pause={"key": "one"})


async def test_a_tool_that_is_done_once_works_outside_of_a_task(effects: Effects) -> None:
    @once
    async def act(args: str, _: Any) -> str:
        return args

    assert await act("now", None) == "now"


async def test_a_server_away_from_a_tools_note_hands_the_task_back(
    store: RedisStateStore, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[str] = []
    whole = TaskContext.keyed_step

    async def keyed_step(self: TaskContext, name: str, key: str, *rest: Any, **more: Any) -> Any:
        if name not in away:
            away.append(name)
            unavailable = BackendUnavailable("here", "on purpose")
            # A tool may call the store from several tasks.
            raise unavailable if name == "model" else ExceptionGroup("tasks", [unavailable])
        return await whole(self, name, key, *rest, **more)

    monkeypatch.setattr(TaskContext, "keyed_step", keyed_step)
    build = planner_of(effects, ["act"])

    async def slowly(made: Any, ctx: TaskContext) -> Any:
        return build(made, ctx)

    async with pool(store, {"plan": planner_handler(slowly)}) as client:
        task = await client.submit("plan", {"query": "question"}, session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE, timeout_s=60)
    assert sorted(away) == ["act", "model"]
    # To the planner it was no failure of its tool: it went straight through the plan.
    assert [line["done"] for line in effects.read("model")] == [0, 1]
    assert len(effects.read("act")) == 1


async def test_an_inbox_is_waited_for_and_ends_with_the_run(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        inbox = TaskInbox(ctx, known=["second"])
        first = await inbox.next()
        await ctx.progress("heard")
        last = await inbox.next()
        return [first.payload["text"], last.payload["text"], inbox.reported, inbox.cancelled]

    reported = SteeringEventType.USER_MESSAGE
    async with pool(store, {"hear": handler}) as client:
        task = await client.submit("hear", session_id=SESSION)
        await client.steer(SESSION, task, reported, {"text": "a"}, event_id="first")
        await eventually(lambda: has_begun(store, task), "the first is heard")
        for number, name in enumerate(("second", "third")):
            await client.steer(SESSION, task, reported, {"text": f"{number}"}, event_id=name)
        ended = await becomes(client, task, TaskStatus.COMPLETE)
    assert ended.result == ["a", "1", ["first", "third"], False]


async def test_a_tool_that_ends_as_if_cancelled_fails_the_task(
    store: RedisStateStore, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any, **__: Any) -> None:
        raise SteeringCancelled("by itself")

    monkeypatch.setattr(ReactPlanner, "run", run)
    async with pool(store, {"plan": planner_handler(planner_of(effects))}) as client:
        task = await client.submit("plan", "question", session_id=SESSION)
        ended = await becomes(client, task, TaskStatus.FAILED)
    assert "SteeringCancelled" in str(ended.error)


@pytest.mark.parametrize(
    ("decision", "stated"),
    [
        (Decision(approved=True, value=None, actor="ann"), "approved"),
        (Decision(approved=False, value=None, actor="ann"), "rejected"),
        (Decision(approved=True, value={"a": 1}, actor="ann"), '{"a":1}'),
        (Decision(approved=False, value="no", actor="ann"), "rejected: no"),
    ],
)
def test_a_decision_is_said_in_words(decision: Decision, stated: str) -> None:
    assert answer_of(decision) == stated
