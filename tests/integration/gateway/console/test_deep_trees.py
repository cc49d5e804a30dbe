"""Trees of tasks that are very deep, or very many."""

from __future__ import annotations

import time
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


def test_a_session_of_many_tasks_costs_their_number() -> None:
    tasks, began = [task(f"t{number}") for number in range(3_000)], time.process_time()
    assert len(branch_documents(tasks, tasks)[0]) == len(tasks)
    # To look through all of them for each is 9 million tasks.
    assert time.process_time() - began < 1
