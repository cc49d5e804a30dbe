"""What the plain and the versioned store of an A2A server's tasks have in common."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.task import validate_page_size

from redis_state.errors import VersionConflict
from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import (
    canceled,
    draft_of,
    nanoseconds,
    protocol_errors,
    task_of,
)
from redis_state.stores.a2a.task_model import (
    UNLESS_ENDED,
    ListRequest,
    Phase,
    Ref,
    Rule,
    VersionStamp,
)

_CANCEL_TRIES = 20


class ScopedTasks:
    """What the stores of tasks have in common: list a caller's tasks, delete one, close."""

    def __init__(self, backend: A2ABackend) -> None:
        self.backend: A2ABackend = backend

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, the last changed first, as of one moment.

        Errors: InvalidParamsError for a page token, a page size or a time that is wrong.
        """
        scope = self.backend.scope(context)
        if params.page_size:
            validate_page_size(params.page_size)
        context_id, since_ns = params.context_id or None, None
        state = str(int(params.status)) if params.status else None
        if params.HasField("status_timestamp_after"):
            since_ns = nanoseconds("status_timestamp_after", params.status_timestamp_after)
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        # A token reads on in its own list only.
        about = (scope, context_id, state, since_ns)
        with protocol_errors():
            after = await self.backend.page_tokens.open(params.page_token, *about)
            self.backend.owner.begin()
            page = await self.backend.tasks.list(
                scope, ListRequest(context_id, state, since_ns, after, size)
            )
        read = (
            self.backend.store.base.attempt(scope, "a2a task", body, partial(task_of, body))
            for body in page.bodies
        )
        return ListTasksResponse(
            tasks=[task for task in read if task is not None],
            next_page_token=await self.backend.page_tokens.seal(page.after, *about),
            page_size=size,
            total_size=page.total,
        )

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task with its events. Its watchers receive the end; its agent is stopped."""
        with protocol_errors():
            await self.backend.owner.drop(self.backend.ref(task_id, context))

    async def _cancel(
        self, ref: Ref, task: Task, event: Event | None, place: VersionStamp | None
    ) -> VersionStamp | None:
        """Write a cancel over whatever version there is, and keep what was written meanwhile.

        It was made from an earlier read, at ``place`` if that is known: what the agent saved since
        is not in it. None if there is no task, or if it has ended. Errors: InvalidTransition.
        """
        owner, draft = self.backend.owner, draft_of(task, event)
        for _ in range(_CANCEL_TRIES):
            found = await owner.repeat(partial(owner.look, ref))
            if found is None or found.phase in {Phase.ENDED, Phase.GONE}:
                return None
            if found.version != place:
                draft = draft_of(*canceled(found.body, task, event))
            with suppress(VersionConflict):
                return await owner.save(ref, draft, Rule.at(found.version))
        # A task that is written all the time is canceled as it was a moment ago.
        return await owner.save(ref, draft, UNLESS_ENDED)

    async def aclose(self) -> None:
        """Close the backend."""
        await self.backend.aclose()
