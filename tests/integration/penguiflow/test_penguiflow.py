"""The store in the hands of the published PenguiFlow."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow import Headers, Message, Node, NodePolicy, create
from penguiflow.planner import PlannerEvent, Trajectory
from penguiflow.state import (
    InMemoryStateStore,
    RemoteBinding,
    StateUpdate,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
    protocol,
    require_capabilities,
)

from redis_state import ConfigError, Settings
from redis_state.integrations import penguiflow as stores
from redis_state.integrations.penguiflow import create_store
from tests.support.processes import children
from tests.support.servers.faults import importing, run_processes, run_python

PROTOCOLS = [
    protocol.StateStore,
    protocol.SupportsPlannerState,
    protocol.SupportsConversationBindings,
    protocol.SupportsMemoryState,
    protocol.SupportsTasks,
    protocol.SupportsSteering,
    protocol.SupportsTrajectories,
    protocol.SupportsPlannerEvents,
    protocol.SupportsArtifacts,
]


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    """Give the store as its host sees it: by what it does, not by its type."""
    made = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    yield made
    await made.aclose()


def binding(task_id: str, **more: Any) -> RemoteBinding:
    fields: dict[str, Any] = {
        "trace_id": "trace",
        "context_id": "context",
        "agent_url": "http://agent",
        "router_session_id": "session",
        "remote_skill": "search",
    }
    return RemoteBinding(task_id=task_id, **{**fields, **more})


@pytest.mark.parametrize("wanted", PROTOCOLS, ids=lambda wanted: wanted.__name__)
def test_the_store_has_each_capability(wanted: type) -> None:
    assert isinstance(create_store(url="redis://localhost:1"), wanted)


def test_making_a_store_asks_no_server_and_names_a_bad_option() -> None:
    create_store(url="redis://localhost:1", max_events_per_trace=3, namespace="n")
    with pytest.raises(ConfigError, match="max_events"):
        create_store(max_events=3)


async def test_only_who_wants_the_a2a_store_pays_for_a_web_framework() -> None:
    ours = "redis_state.integrations.penguiflow"
    check = f"import sys, {ours} as ours; assert 'fastapi' not in sys.modules"
    await run_python("-c", f"{check}; ours.create_a2a_task_store; assert 'fastapi' in sys.modules")


def test_a_name_that_the_package_does_not_have_is_named() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'create_nothing'"):
        getattr(stores, "create_nothing")  # noqa: B009 - type checkers know that there is none


def test_the_hosts_own_check_of_capabilities_passes() -> None:
    methods = ["save_task", "list_tasks", "save_update", "list_updates", "save_steering"]
    require_capabilities(create_store(url="redis://localhost:1"), feature="x", methods=methods)


async def test_what_comes_back_is_of_the_hosts_own_classes(host: Any) -> None:
    await host.save_event(StoredEvent("trace", 1.0, "node_start", "n", None, {"a": 1}))
    (event,) = await host.load_history("trace")
    assert type(event) is StoredEvent
    snapshot = TaskContextSnapshot(session_id="session", task_id="task", context_version=3)
    state = TaskState(
        "task", "session", TaskStatus.RUNNING, TaskType.BACKGROUND, 1, snapshot, result=0
    )
    await host.save_task(state)
    (task,) = await host.list_tasks("session")
    assert task == state
    assert (type(task), type(task.status)) == (TaskState, TaskStatus)
    update = StateUpdate(
        session_id="session", task_id="task", update_type=UpdateType.RESULT, content=""
    )
    await host.save_task_update(update)
    assert await host.list_task_updates("session") == [update]
    planner_event = PlannerEvent(event_type="finish", ts=1.5, trajectory_step=2)
    await host.save_planner_event("trace", planner_event)
    assert await host.get_events("trace") == [planner_event]
    await host.save_trajectory("trace", "session", Trajectory(query="q", metadata={"a": 1}))
    trajectory = await host.get_trajectory("trace", "session")
    assert type(trajectory) is Trajectory
    assert (trajectory.query, trajectory.metadata) == ("q", {"a": 1})
    ref = await host.artifact_store.put_text("text", namespace="tool")
    assert type(ref).__module__.startswith("penguiflow")


async def test_bindings_are_found_as_the_reference_finds_them(host: Any) -> None:
    reference = InMemoryStateStore()
    requested: list[dict[str, Any]] = [
        {"router_session_id": "session", "agent_url": url, "remote_skill": skill, **who}
        for url, skill in itertools.product(["http://agent", "http://b"], ["search", "write"])
        for who in ({}, {"tenant_id": "t"}, {"tenant_id": "t", "user_id": "u"}, {"user_id": "u"})
    ]
    steps: list[RemoteBinding] = [
        binding("1"),
        binding("2", tenant_id="t", user_id="u"),
        binding("3"),
        binding("1", last_remote_task_id="again"),
        binding("3", context_id=None),
        binding("4", remote_skill="write", agent_url="http://b", user_id="u"),
        binding("3", router_session_id="elsewhere"),
        binding("5", is_terminal=True),
        binding("6", router_session_id=None),
        binding("7", remote_skill=None),
        binding("2", tenant_id="t", user_id="u", is_terminal=True),
    ]
    ends = [("3", None), ("1", "context"), ("unknown", "context")]
    for step in [*steps, *ends]:
        for store in (reference, host):
            if isinstance(step, RemoteBinding):
                await store.save_remote_binding(step)
            else:
                task_id, context_id = step
                await store.mark_binding_terminal(
                    trace_id="trace", context_id=context_id, task_id=task_id
                )
        for question in requested:
            assert await host.find_binding(**question) == await reference.find_binding(**question)
        for session in ("session", "elsewhere", "nowhere"):
            ours = await host.list_bindings(router_session_id=session)
            assert ours == await reference.list_bindings(router_session_id=session)


async def test_a_binding_that_is_given_back_is_a_copy(host: Any) -> None:
    await host.save_remote_binding(binding("1", metadata={"a": 1}))
    (first,) = await host.list_bindings(router_session_id="session")
    first.metadata["a"] = 2
    (again,) = await host.list_bindings(router_session_id="session")
    assert again.metadata == {"a": 1}
    assert again == replace(binding("1"), metadata={"a": 1})


@pytest.mark.role("admin")
async def test_clearing_is_no_coroutine_and_is_done_when_it_returns(
    host: Any,
) -> None:
    update = StateUpdate(
        session_id="session", task_id="task", update_type=UpdateType.PROGRESS, content=1
    )
    await host.save_update(update)
    await host.save_memory_state("key", {"a": 1})
    host.clear_session("session")
    assert await host.list_updates("session") == []
    assert await host.load_memory_state("key") == {"a": 1}
    host.clear()
    assert await host.load_memory_state("key") is None


async def test_a_flow_leaves_its_history_in_the_store(host: Any) -> None:
    async def shout(message: Message, _: Any) -> Message:
        return message.model_copy(update={"payload": str(message.payload).upper()})

    node = Node(shout, name="shout", policy=NodePolicy(validate="none"))
    flow = create(node.to(), state_store=host)
    flow.run()
    message = Message(payload="hello", headers=Headers(tenant="t"))
    await flow.emit(message)
    answer = await flow.fetch()
    await flow.stop()
    assert answer.payload == "HELLO"
    kinds = [event.kind for event in await host.load_history(message.trace_id)]
    assert "node_start" in kinds
    assert "node_success" in kinds


# Both commands, one after the other in one interpreter.
_ASK = """
import runpy, sys
for command in ("history", "replay"):
    sys.argv[1:2] = [command]
    try:
        runpy.run_module("penguiflow.admin", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, command
    print("asked", command)
"""


async def test_the_admin_commands_read_the_history_quietly(host: Any, settings: Settings) -> None:
    await host.save_event(StoredEvent("trace", 1.0, "node_start", "n", None, {"a": 1}))
    process = await children.start(
        *(sys.executable, "-W", "default::ResourceWarning", "-c", _ASK, "command"),
        *("--state-store", "redis_state.integrations.penguiflow:create_store", "trace"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=importing(
            REDIS_STATE_URL=settings.url.get_secret_value(),
            REDIS_STATE_NAMESPACE=settings.namespace,
        ),
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    history, replay, _ = re.split(rb"asked \w+\n", out)
    assert b"node_start" in history
    assert b"node_start" in replay
    assert b"redis" not in err


async def test_a_planner_that_paused_is_resumed_once_in_another_process(
    settings: Settings,
) -> None:
    here = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    (paused,) = await run_processes("plan", [{**here, "does": "run"}])
    resume = {**here, "does": "resume", "token": paused["token"]}
    ended = await run_processes("plan", [resume] * 3)
    (won,) = [result for result in ended if result["won"]]
    assert won["pid"] != paused["pid"]
    assert won["steps"] == ["look_up", "ask"]
