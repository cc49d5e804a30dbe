"""Many processes, many sessions, all kinds of state at once: every list is as a model has it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from redis_state import Settings
from tests.support.hosts import KINDS, Host, open_host, penguiflow_types
from tests.support.operations import Model, Operation, Rows, by_worker, draw, task_of
from tests.support.servers.faults import run_processes

SEED = int(os.environ.get("REDIS_STATE_SEED", "20240501"))


def said_by(rows: dict[int, Operation]) -> tuple[dict[Any, list[int]], set[int]]:
    """Tell what each worker saved, in order, and which rows are nobody's."""
    own = [{"worker": each.worker, "n": n} for n, each in rows.items() if not each.shared]
    return by_worker(own), {n for n, each in rows.items() if each.shared}


def found_by(rows: list[dict[str, Any]]) -> tuple[dict[Any, list[int]], set[int]]:
    """Tell the same of rows that were read, none of them twice."""
    numbers = [row["n"] for row in rows]
    assert len(set(numbers)) == len(numbers)
    return by_worker(rows), {row["n"] for row in rows if row["worker"] is None}


async def compare_logs(host: Host, model: Model, session: str) -> int:
    """Compare a session's and its trace's rows; count them."""
    store, trace = host.store, f"trace {session}"
    history = await store.load_history(trace)
    expected = sorted(model.events[session].values(), key=lambda each: each.at)
    assert [event.payload["n"] for event in history] == [each.n for each in expected]
    logs: list[tuple[Rows, list[Any]]] = [
        (model.updates, [u.content for u in await store.list_updates(session, limit=100_000)]),
        (model.steering, [e.payload for e in await store.list_steering(session, limit=100_000)]),
        (model.planner, [e.extra for e in await store.list_planner_events(trace)]),
    ]
    for rows, found in logs:
        assert found_by(found) == said_by(rows[session])
    for number in range(3):
        of_task = {n: each for n, each in model.updates[session].items() if n % 3 == number}
        listed = await store.list_updates(session, task_id=f"task {number}", limit=100_000)
        assert found_by([update.content for update in listed]) == said_by(of_task)
    return len(history) + sum(len(found) for _, found in logs)


async def compare_records(host: Host, model: Model, session: str, workers: int) -> int:
    """Compare a session's tasks, trajectories and bindings; count them."""
    store = host.store
    tasks = {task.task_id: task for task in await store.list_tasks(session)}
    assert tasks == {name: task_of(host, each) for name, each in model.tasks[session].items()}
    traces = await store.list_traces(session, limit=100_000)
    assert set(traces) == set(model.traces[session])
    bindings = await store.list_bindings(router_session_id=session)
    assert {each.task_id: each for each in bindings} == model.bindings[session]
    for worker in range(workers):
        mark = f"{session} worker {worker} "
        own = [name for name in model.traces[session] if name.startswith(mark)]
        assert [name for name in traces if name.startswith(mark)] == own[::-1]
        kept = [each for name, each in model.bindings[session].items() if name.startswith(mark)]
        assert [each for each in bindings if each.task_id.startswith(mark)] == kept
        live = [each for each in kept if not each.is_terminal]
        found = await store.find_binding(
            router_session_id=session, agent_url="http://agent", remote_skill=f"skill {worker}"
        )
        assert found == (live[-1] if live else None)
        firsts = [name for name in model.tasks[session] if name.startswith(mark)]
        assert [name for name in tasks if name.startswith(mark)] == firsts
    for name, n in model.traces[session].items():
        trajectory = await store.get_trajectory(name, session)
        assert (trajectory.query, trajectory.metadata) == (str(n), {"n": n})
    return len(tasks) + len(traces) + len(bindings)


async def mix(settings: Settings, kind: str, **size: int) -> None:
    """Have the processes do their parts, and compare all that is left."""
    drawn = draw(SEED, **size)
    common = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "kind": kind,
        "seed": SEED,
        "size": size,
    }
    parts = [{**common, "worker": number} for number in range(size["workers"])]
    won = await run_processes("mix_sessions", parts, timeout_s=300)
    async with open_host(kind, settings) as host:
        model = Model()
        for each in drawn:
            model.apply(host, each)
        compared = 0
        for number in range(size["sessions"]):
            session = f"session:{number}"
            compared += await compare_logs(host, model, session)
            compared += await compare_records(host, model, session, size["workers"])
        for key, n in model.memory.items():
            assert await host.store.load_memory_state(key) == {"n": n}
        tokens = [n for each in won for n in each]
        assert sorted(tokens) == sorted(model.pauses)
        rows = (model.events, model.updates, model.steering, model.planner)
        expected = sum(len(of_one) for log in rows for of_one in log.values())
        kept = (model.tasks, model.traces, model.bindings)
        expected += sum(len(of_one) for group in kept for of_one in group.values())
        assert compared == expected
        assert expected > size["operations"] / 3


@pytest.mark.parametrize("kind", KINDS)
async def test_3_processes_on_8_sessions_leave_what_the_model_has(
    settings: Settings, kind: str
) -> None:
    if kind == "penguiflow":
        penguiflow_types()
    await mix(settings, kind, sessions=8, workers=3, operations=1_000)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_8_processes_on_64_sessions_leave_what_the_model_has(settings: Settings) -> None:
    penguiflow_types()
    await mix(settings, "penguiflow", sessions=64, workers=8, operations=10_000)
