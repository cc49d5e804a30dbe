"""Trees of tasks that are very deep, or very many."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state.gateway.console.views import session, trees
from redis_state.gateway.showing.documents import branch_documents
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.models.tasks import parent_of
from redis_state.worker.tasks.new_tasks import NewTasks
from redis_state.worker.tasks.views.branches import reread_branch
from tests.integration.gateway.console.conftest import KEYS, LogIn
from tests.support.http.gateway import Served, ends, stranger
from tests.support.processes.pools import queue_of

DEPTH = 150


def task(task_id: str, above: str = "foreground") -> TaskState:
    snapshot = TaskContextSnapshot(session_id="s", task_id=task_id, spawned_from_task_id=above)
    return TaskState(task_id, "s", TaskStatus.PENDING, TaskType.BACKGROUND, 0, snapshot)


async def test_a_chain_of_tasks_is_cut_where_json_ends(console: Served, log_in: LogIn) -> None:
    above = "foreground"
    for number in range(DEPTH):
        state = task(f"t{number}", above)
        assert await NewTasks(console.store).create(state, handler="h", task_input=None)
        above = state.task_id
    ann = await log_in("ann")
    for page, named in (("/session", {}), ("/task", {"task": "t0"})):
        shown = await ann.get(page, session="s", **named)
        assert shown.status == 200, page
        assert "100 levels below" in shown.text
    async with stranger(console.app, authorization=f"Bearer {KEYS['ann']}") as http:
        (tree,) = (found := (await http.get("/v1/sessions/s/tree")).json())["trees"]
        below = (await http.get("/v1/sessions/s/tasks/t50/tree")).json()
    assert (found["incomplete"], depth(tree)) == (True, 100)
    assert (below["incomplete"], depth(below)) == (False, DEPTH - 51)


def depth(tree: dict[str, Any]) -> int:
    levels = 0
    while tree["children"]:
        (tree,) = tree["children"]
        levels += 1
    return levels


def fields_of(state: TaskState) -> dict[str, Any]:
    return {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}


def test_a_session_of_many_tasks_costs_their_number() -> None:
    reads = 0

    class Counted(TaskState):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "context_snapshot"
            return super().__getattribute__(name)

    tasks = [Counted(**fields_of(task(f"t{number}"))) for number in range(3_000)]
    reads = 0
    assert len(branch_documents(tasks, tasks)[0]) == len(tasks)
    # To look through all of them for each is 9 million.
    assert len(tasks) <= reads < 10 * len(tasks)


async def test_a_task_named_like_the_parent_of_none_has_no_others_below_it(
    console: Served,
) -> None:
    for each in (task("foreground"), task("root"), task("child", "root")):
        assert await NewTasks(console.store).create(each, handler="h", task_input=None)
    async with stranger(console.app, authorization=f"Bearer {KEYS['ann']}") as http:
        trees = (await http.get("/v1/sessions/s/tree")).json()["trees"]
        own = (await http.get("/v1/sessions/s/tasks/foreground/tree")).json()
    assert [(each["task_id"], depth(each)) for each in trees] == [("foreground", 0), ("root", 1)]
    assert own["children"] == []


async def test_a_branch_that_is_read_again_has_what_was_spawned_since(console: Served) -> None:
    queue = queue_of(console.store.settings)
    await console.client.queues.pause(queue)
    await console.client.submit("parent", session_id="s", task_id="p")
    await console.client.submit("echo", session_id="s", task_id="other")
    known = await console.store.tasks.load("s", "p")
    assert known is not None
    await console.client.queues.resume(queue)
    await ends(console, "s", "p")
    again = await reread_branch(console.store, [known])
    assert [(each.status, parent_of(each)) for each in again] == [
        (TaskStatus.COMPLETE, None),
        (TaskStatus.COMPLETE, "p"),
    ]
    await console.store.clear_session("s")
    assert await reread_branch(console.store, again) == again


async def test_a_session_of_many_tasks_is_shown_by_its_newest(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_TREES", 2)
    for name in ("t1", "t2", "t3"):
        assert await NewTasks(console.store).create(task(name), handler="h", task_input=None)
    shown = await (await log_in("ann")).get("/session", session="s")
    # The trees come first, then the updates.
    assert [link.rpartition("=")[2] for link in shown.links("/task?")][:3] == ["t2", "t3", "t1"]
    assert shown.links("/find?session_id=s")
    assert "1 more" in shown.text


async def test_of_very_many_children_the_first_are_shown(
    console: Served, log_in: LogIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MOST_TASKS", 3)
    assert await NewTasks(console.store).create(task("top"), handler="h", task_input=None)
    for number in range(4):
        child = task(f"c{number}", "top")
        assert await NewTasks(console.store).create(child, handler="h", task_input=None)
    ann = await log_in("ann")
    for page, named in (("/session", {}), ("/task", {"task": "top"})):
        shown = await ann.get(page, session="s", **named)
        assert "2 more are below" in shown.text
        assert shown.links("/find?session_id=s")
        assert "c1" in shown.text.partition("Updates")[0].partition("Runs")[0]
        assert "c2" not in shown.text.partition("Updates")[0].partition("Runs")[0]
