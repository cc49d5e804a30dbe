"""Pages of an A2A server's list of tasks."""

from __future__ import annotations

from functools import partial

from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.task import validate_page_size

from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import protocol_errors, task_of
from redis_state.stores.a2a.tasks import ListRequest


async def list_page(backend: A2ABackend, params: ListTasksRequest, scope: str) -> ListTasksResponse:
    """Read a page of a scope. Errors: InvalidParamsError for a page token or size that is wrong."""
    if params.page_size:
        validate_page_size(params.page_size)
    context, since_ns = params.context_id or None, None
    state = str(int(params.status)) if params.status else None
    if params.HasField("status_timestamp_after"):
        since_ns = params.status_timestamp_after.ToNanoseconds()
    size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    # A token reads on in its own list only.
    about = (scope, context, state, since_ns)
    with protocol_errors():
        after = await backend.page_tokens.open(params.page_token, *about)
        backend.owner.begin()
        page = await backend.tasks.list(scope, ListRequest(context, state, since_ns, after, size))
    read = (
        backend.store.base.attempt(scope, "a2a task", body, partial(task_of, body))
        for body in page.bodies
    )
    return ListTasksResponse(
        tasks=[task for task in read if task is not None],
        next_page_token=await backend.page_tokens.seal(page.after, *about),
        page_size=size,
        total_size=page.total,
    )
