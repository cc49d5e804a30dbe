"""Trees of tasks that are very deep, or very many."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state.gateway.documents import branch_documents
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.worker.tasks.new_tasks import NewTasks
from tests.integration.gateway.console.conftest import KEYS, LogIn
from tests.support.http.gateway import Served, stranger

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
