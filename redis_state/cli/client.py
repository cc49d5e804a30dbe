"""The client of a command, and the session and the task that it names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from redis_state import RedisStateStore
from redis_state.cli.output import harmless
from redis_state.errors import NotFound
from redis_state.models import TaskState

if TYPE_CHECKING:
    from redis_state.worker import TaskClient

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The task's session.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
OfSession = Annotated[str | None, typer.Option("--session", "-s", help="Only of this session.")]


@asynccontextmanager
async def client_of(url: str | None) -> AsyncGenerator[TaskClient, None]:
    """Open a client of the server that a command names."""
    from redis_state.worker import TaskClient  # noqa: PLC0415 - needs the extra

    async with RedisStateStore.from_url(url) as store, TaskClient(store) as client:
        yield client


async def found(client: TaskClient, session_id: str, task_id: str) -> TaskState:
    """Return a task. Errors: NotFound."""
    state = await client.get(session_id, task_id)
    if state is None:
        raise missing(session_id, task_id)
    return state


def missing(session_id: str, task_id: str) -> NotFound:
    """Return the error of a task that there is not."""
    return NotFound(f"session {harmless(session_id)!r} has no task {harmless(task_id)!r}")
