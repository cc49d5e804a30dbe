"""Real flows of PenguiFlow in a pool of workers: one for each task, or one that is kept."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")
pytest.importorskip("arq", reason="needs the worker extra")

from penguiflow import FlowError, Message, Node, NodePolicy, PenguiFlow, create

from redis_state import BackendUnavailable, ConfigError, InvalidField, RedisStateStore, Settings
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.flows import flow_handler, kept_flow_handler
from redis_state.integrations.penguiflow.tasks import task_of
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskClient, TaskContext
from tests.support.penguiflow.handlers import Effects, flow_of
from tests.support.penguiflow.pool import end, worker
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool

pytestmark = pytest.mark.worker
POLICY = NodePolicy(validate="none", max_retries=0)


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    made = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    yield made
    await made.aclose()


async def ended(client: TaskClient, *tasks: str) -> list[Any]:
    """Wait for tasks, and return what they came to: a result, or the kind of an error."""

    async def over() -> list[Any] | None:
        found = [await client.get(SESSION, task) for task in tasks]
        if not all(state is not None and state.status.is_terminal for state in found):
            return None
        return [state.result if state.error is None else state.error for state in found if state]

    return await eventually(over, "all tasks are over", timeout_s=30) or []


async def kinds(host: Any, task: str) -> list[tuple[str, str]]:
    history = await host.load_history(f"job-{task}")
    return [(event.node_name, event.kind) for event in history]


WHOLE = [
    ("check", "node_start"),
    ("check", "node_success"),
    ("charge", "node_start"),
    ("charge", "node_success"),
]


@pytest.mark.parametrize("kind", ["flow", "kept"])
async def test_a_task_has_its_result_and_its_trace_whichever_worker_runs_it(
    store: RedisStateStore,
    host: Any,
    effects: Effects,
    tmp_path: Path,
    kind: str,
) -> None:
    async with (
        client_of(store) as client,
        worker(store.settings, tmp_path, "first") as first,
        worker(store.settings, tmp_path, "second") as second,
    ):
        tasks = [
            await client.submit(kind, f"order {number}", session_id=SESSION) for number in range(20)
        ]
        found = await ended(client, *tasks)
        assert await end(first) == 0
        assert await end(second) == 0
    assert found == [f"charged order {number}" for number in range(20)]
    pids = {line["pid"] for line in effects.read("charge")}
    assert pids == {first.pid, second.pid}
    assert len(effects.read("built")) == (20 if kind == "flow" else 2)
    for task in tasks:
        assert sorted(await kinds(host, task)) == sorted(WHOLE)


@pytest.mark.parametrize("trace_id", [None, "trace-1"])
async def test_children_run_at_once_in_one_worker_each_with_a_trace_of_its_own(
    store: RedisStateStore, host: Any, trace_id: str | None
) -> None:
    begun: list[str] = []

    def build(own: Any) -> PenguiFlow:
        async def shout(message: Message, _: Any) -> Message:
            begun.append(message.trace_id)
            await eventually(lambda: len(begun) == 2, "both are at work")
            return message.model_copy(update={"payload": message.payload.upper()})

        return create(Node(shout, name="shout", policy=POLICY).to(), state_store=own)

    async def parent(ctx: TaskContext) -> list[Any]:
        children = [await ctx.spawn("shout", word) for word in ("a", "b")]
        return [await ctx.join(child) for child in children]

    async with pool(store, {"parent": parent, "shout": flow_handler(build)}) as client:
        task = await client.submit("parent", session_id=SESSION, trace_id=trace_id)
        assert await ended(client, task) == [["A", "B"]]
        names = [child.task_id for child in await client.children(SESSION, task)]
    given = "job-" if trace_id is None else f"{trace_id}/"
    assert sorted(begun) == sorted(f"{given}{name}" for name in names)
    for trace in begun:
        history = await host.load_history(trace)
        assert sorted(event.kind for event in history) == ["node_start", "node_success"]


@pytest.mark.parametrize("kind", ["flow", "kept"])
async def test_a_killed_workers_flow_begins_again_and_charges_once(
    store: RedisStateStore,
    effects: Effects,
    tmp_path: Path,
    kind: str,
) -> None:
    async with client_of(store) as client:
        async with worker(store.settings, tmp_path, "first", lease_s=1.0) as first:
            task = await client.submit(kind, "once", session_id=SESSION)
            await eventually(lambda: bool(effects.read("check")), "it is checked", timeout_s=30)
            first.kill()
            await first.communicate()
        async with worker(store.settings, tmp_path, "second", lease_s=1.0) as second:
            assert await ended(client, task) == ["charged once"]
    assert [line["pid"] for line in effects.read("check")] == [first.pid, second.pid]
    assert len(effects.read("charge")) == 1


@pytest.mark.parametrize("kind", ["flow", "kept"])
async def test_a_worker_told_to_stop_hands_over_what_its_flow_cannot_end(
    store: RedisStateStore,
    host: Any,
    effects: Effects,
    tmp_path: Path,
    kind: str,
) -> None:
    async with client_of(store) as client:
        async with worker(store.settings, tmp_path, "first", grace_s=0.2) as first:
            task = await client.submit(kind, "once", session_id=SESSION)
            await eventually(lambda: bool(effects.read("check")), "it is checked", timeout_s=30)
            assert await end(first) == 0
            await becomes(client, task, TaskStatus.PENDING)
            assert ("check", "node_start") in await kinds(host, task)
        async with worker(store.settings, tmp_path, "second"):
            assert await ended(client, task) == ["charged once"]


async def test_a_kept_flow_is_replaced_after_failures_in_a_row_and_not_before(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = kept_flow_handler(flow_of(effects), restart_after=3)
    async with pool(store, {"kept": handler}) as client:

        async def run(*texts: str) -> list[Any]:
            tasks = [await client.submit("kept", text, session_id=SESSION) for text in texts]
            return await ended(client, *tasks)

        failed = "FlowFailed: node 'check' failed: NODE_EXCEPTION of ValueError"
        for text in ("fail", "fail", "good", "fail", "fail"):
            assert await run(text) == [failed if text == "fail" else "charged good"]
        assert handler.built == 1
        assert await run("fail") == [failed]
        assert await run("good") == ["charged good"]
        assert handler.built == 2
    assert len(effects.read("built")) == 2


async def test_a_replaced_flow_is_stopped_when_its_last_task_is_over(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = kept_flow_handler(flow_of(effects), restart_after=1)
    async with pool(store, {"kept": handler}) as client:
        slow = await client.submit("kept", "stuck", session_id=SESSION)
        await eventually(lambda: bool(effects.read("check")), "it has begun")
        bad = await client.submit("kept", "fail", session_id=SESSION)
        assert "FlowFailed" in str(await ended(client, bad))
        good = await client.submit("kept", "good", session_id=SESSION)
        assert await ended(client, good) == ["charged good"]
        assert handler.built == 2
        # The task in the first flow goes on, and can still be cancelled in it.
        state = await client.get(SESSION, slow)
        assert state is not None
        assert state.status is TaskStatus.RUNNING
        assert len(nodes()) == 4
        await client.cancel(SESSION, slow)
        await becomes(client, slow, TaskStatus.CANCELLED)
        await eventually(lambda: len(nodes()) == 2, "the first flow is stopped")
    assert not nodes()


def nodes() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("penguiflow:c")]


async def test_a_flow_out_of_time_counts_as_a_failure(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = kept_flow_handler(flow_of(effects), restart_after=1)
    async with pool(store, {"kept": handler}, task_timeout_s=0.3) as client:
        slow = await client.submit("kept", "hang", session_id=SESSION)
        assert "TimeoutError" in str(await ended(client, slow))
        good = await client.submit("kept", "good", session_id=SESSION)
        assert await ended(client, good) == ["charged good"]
    assert handler.built == 2


async def test_what_comes_out_beside_the_results_does_not_stop_a_kept_flow(
    store: RedisStateStore,
) -> None:
    async def echo(message: Message, _: Any) -> Message:
        return message

    def build(made: Any) -> Any:
        start, left, right = (Node(echo, name=name, policy=POLICY) for name in "abc")
        return create(start.to(left, right), state_store=made, queue_maxsize=2)

    handler = kept_flow_handler(build)
    async with pool(store, {"kept": handler}) as client:
        tasks = [await client.submit("kept", number, session_id=SESSION) for number in range(40)]
        assert await ended(client, *tasks) == list(range(40))


async def test_a_node_pauses_its_task_and_finds_its_decision(store: RedisStateStore) -> None:
    async def ask(message: Message, _: Any) -> Message:
        decision = await task_of(message).approval("go on?")
        return message.model_copy(update={"payload": decision.value})

    def build(made: Any) -> Any:
        return create(Node(ask, name="ask", policy=POLICY).to(), state_store=made)

    kept = kept_flow_handler(build)
    async with pool(store, {"flow": flow_handler(build), "kept": kept}) as client:
        for name in ("flow", "kept"):
            task = await client.submit(name, session_id=SESSION)
            token = await open_token(store, task)
            await becomes(client, task, TaskStatus.PAUSED)
            await client.approve(token, name)
            assert await ended(client, task) == [name]
    # The pause has ended one of its nodes.
    assert kept.built == 2
    gc.collect()


async def test_a_kept_flow_that_a_pause_has_ended_hands_its_other_tasks_back(
    store: RedisStateStore,
) -> None:
    begun: list[str] = []
    waits = asyncio.Event()

    async def first(message: Message, _: Any) -> Message:
        begun.append(message.payload)
        if begun.count("waits") == 1 and message.payload == "waits":
            waits.set()
            await asyncio.Event().wait()
        return message

    async def second(message: Message, _: Any) -> Message:
        if message.payload == "pauses":
            await waits.wait()
            await task_of(message).approval("go on?")
        return message

    def build(made: Any) -> Any:
        nodes = [Node(each, name=each.__name__, policy=POLICY) for each in (first, second)]
        return create(nodes[0].to(nodes[1]), state_store=made)

    kept = kept_flow_handler(build)
    async with pool(store, {"kept": kept}) as client:
        pauses = await client.submit("kept", "pauses", session_id=SESSION)
        await eventually(lambda: bool(begun), "the first has begun")
        other = await client.submit("kept", "waits", session_id=SESSION)
        token = await open_token(store, pauses)
        assert await ended(client, other) == ["waits"]
        await client.approve(token)
        assert await ended(client, pauses) == ["pauses"]
    assert begun == ["pauses", "waits", "waits", "pauses"]
    assert kept.built == 2


async def test_a_kept_flow_keeps_nothing_of_the_traces_behind_it(
    store: RedisStateStore, effects: Effects
) -> None:
    flows: list[Any] = []
    make = flow_of(effects)

    def build(made: Any) -> Any:
        flows.append(make(made))
        return flows[-1]

    async with pool(store, {"kept": kept_flow_handler(build, restart_after=99)}) as client:
        texts = ["good", "fail"] * 10
        tasks = [await client.submit("kept", text, session_id=SESSION) for text in texts]
        await ended(client, *tasks)
        (flow,) = flows
        kept: dict[str, Any] = flow.__dict__
        shown = [name for name, value in kept.items() if "job-" in str(value)]
    assert shown == []


async def test_a_stopped_flow_leaves_no_task_behind(
    store: RedisStateStore, effects: Effects
) -> None:
    handlers: dict[str, Handler] = {
        "flow": flow_handler(flow_of(effects)),
        "kept": kept_flow_handler(flow_of(effects)),
    }
    before = asyncio.all_tasks()
    async with pool(store, handlers) as client:
        tasks = [await client.submit(kind, "text", session_id=SESSION) for kind in handlers]
        assert await ended(client, *tasks) == ["charged text"] * 2
    left = asyncio.all_tasks() - before
    assert not [task for task in left if "Queue.get" in repr(task)]


async def test_the_deployed_pool_has_a_flow_of_each_kind(store: RedisStateStore) -> None:
    jobs = pytest.importorskip("workers.jobs", reason="the deployed pool is not beside the tests")
    async with pool(store, jobs.HANDLERS) as client:
        tasks = [
            await client.submit(kind, "three small words", session_id=SESSION)
            for kind in ("count_words", "count_words_kept", "count_words_kept")
        ]
        assert await ended(client, *tasks) == [{"words": 3}] * 3


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="restart_after"):
        kept_flow_handler(lambda _: create(), restart_after=0)
    with pytest.raises(InvalidField, match="no task that runs here"):
        task_of("job-none")
    with pytest.raises(InvalidField, match="no task that runs here"):
        task_of(object())


@pytest.mark.parametrize("kind", ["flow", "kept"])
async def test_a_flow_that_cannot_be_built_fails_the_task(
    store: RedisStateStore, effects: Effects, kind: str
) -> None:
    make = flow_of(effects)
    tries: list[int] = []

    async def build(made: Any) -> Any:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RuntimeError("no model")
        return make(made)

    handler = flow_handler(build) if kind == "flow" else kept_flow_handler(build)
    async with pool(store, {"work": handler}) as client:
        for expected in ("RuntimeError: no model", "charged good"):
            task = await client.submit("work", "good", session_id=SESSION)
            assert await ended(client, task) == [expected]


async def test_an_error_that_comes_out_of_a_flow_is_told_by_its_kind(
    store: RedisStateStore,
) -> None:
    async def fail(message: Message, _: Any) -> Message:
        raise ValueError("what nobody is told")

    async def out(message: Message, _: Any) -> Any:
        return FlowError(trace_id=None, node_name="out", code="HOP_BUDGET_EXHAUSTED", message="m")

    def flow(node: Any, made: Any) -> Any:
        only = Node(node, name=node.__name__, policy=POLICY)
        return create(only.to(), state_store=made, emit_errors_to_rookery=True)

    handlers: dict[str, Handler] = {
        each.__name__: flow_handler(partial(flow, each)) for each in (fail, out)
    }
    async with pool(store, handlers) as client:
        tasks = [await client.submit(name, session_id=SESSION) for name in ("fail", "out")]
        assert await ended(client, *tasks) == [
            "FlowFailed: node 'fail' failed: NODE_EXCEPTION of ValueError",
            "FlowFailed: node 'out' failed: HOP_BUDGET_EXHAUSTED",
        ]


async def test_a_server_away_from_a_nodes_note_hands_the_task_back(
    store: RedisStateStore, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[str] = []
    whole = TaskContext.keyed_step

    async def keyed_step(self: TaskContext, name: str, key: str, *rest: Any, **more: Any) -> Any:
        if not away:
            away.append(name)
            raise BackendUnavailable("here", "on purpose")
        return await whole(self, name, key, *rest, **more)

    monkeypatch.setattr(TaskContext, "keyed_step", keyed_step)
    async with pool(store, {"flow": flow_handler(flow_of(effects))}) as client:
        task = await client.submit("flow", "good", session_id=SESSION)
        assert await ended(client, task) == ["charged good"]
    assert away == ["charge"]
    assert len(effects.read("built")) == 2


async def test_a_broken_flow_without_tasks_is_ended_before_the_next(
    store: RedisStateStore, effects: Effects
) -> None:
    handler = kept_flow_handler(flow_of(effects))
    async with pool(store, {"kept": handler}) as client:
        for built in (1, 2):
            task = await client.submit("kept", "good", session_id=SESSION)
            assert await ended(client, task) == ["charged good"]
            assert handler.built == built
            for node in nodes():
                node.cancel()
            await eventually(lambda: not nodes(), "all nodes have ended")
