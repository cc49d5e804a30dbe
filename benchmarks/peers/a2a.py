"""The A2A SDK's tasks, ready made: filling them is no part of what is measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Operation
from benchmarks.samples import CONTEXT, LOADED, TASKS, task_name


def task_maker() -> Callable[[int], Any]:
    """Return a function from a number to a task of about 2 KB, made before."""
    types: Any = importlib.import_module("a2a.types")
    history = [
        types.Message(
            message_id=f"message-{n}",
            role=types.Role.user,
            parts=[types.Part(root=types.TextPart(text=message["content"]))],
        )
        for n, message in enumerate(CONTEXT["messages"])
    ]
    made = types.Task(
        id="task",
        context_id="context",
        status=types.TaskStatus(state=types.TaskState.working),
        history=history,
        metadata={"facts": CONTEXT["facts"]},
    )

    named = [made.model_copy(update={"id": task_name(number)}) for number in range(TASKS)]
    return lambda number: named[number % TASKS]


def operations(store: Any) -> dict[str, Operation]:
    """Give the operations on one of its task stores."""
    task = task_maker()

    async def save(number: int) -> None:
        await store.save(task(number))

    async def load(number: int) -> None:
        if await store.get(task_name(number % LOADED)) is None:
            raise LookupError("nothing was saved before")

    return {"load": load, "save": save}
