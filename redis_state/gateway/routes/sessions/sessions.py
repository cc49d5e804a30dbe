"""Sessions: list them, and the tasks of one as trees."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from starlette.responses import Response

from redis_state.gateway.answers import answer, forbidden, not_found
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import ForgetUserBody
from redis_state.gateway.requests.queries import ForgetQuery, PageQuery
from redis_state.gateway.results import ErasureResult, SessionResult, SessionsResult, TreeResult
from redis_state.gateway.showing.documents import branch_documents, session_document
from redis_state.gateway.showing.visible import shown_task
from redis_state.models.tasks import parent_of
from redis_state.worker.tasks.views.branches import tasks_of_session

# For tasks that run to notice that they are cancelled. Then they lose their leases.
_LONGEST_WAIT_S = 10.0


async def list_sessions(call: ApiCall) -> Response:
    """List the sessions that have tasks: all, or those that the caller may read."""
    query = call.query_as(PageQuery)
    if call.principal.everywhere(Right.READ):
        page = await call.client.sessions(limit=query.limit, after=query.after)
        listed = [session_document(each) for each in page.sessions]
        return answer({"sessions": listed, "cursor": page.cursor})
    named = call.principal.named("session", Right.READ)
    if not named:
        raise forbidden("the caller may read no session")
    counts = await asyncio.gather(*(_counts(call, session_id) for session_id in named))
    found = [
        {"session_id": session_id, "counts": its, "newest_at": None}
        for session_id, its in zip(named, counts, strict=True)
        if any(its.values())
    ]
    # A caller has few scopes: they are one page.
    return answer({"sessions": found, "cursor": None})


async def read_session(call: ApiCall) -> Response:
    """Read how many tasks of each status a session has: in Redis, else in the archive.

    One that has updates alone has no tasks.
    """
    session_id = call.path["session"]
    counts, is_gone = await asyncio.gather(_counts(call, session_id), _is_gone(call, session_id))
    archived = incomplete = False
    if is_gone:
        tasks, incomplete = await tasks_of_session(call.store, session_id)
        archived = bool(tasks)
        if archived:
            # The index of tasks may still list some that have expired.
            counts = dict.fromkeys(counts, 0) | Counter(task.status.value for task in tasks)
    if not any(counts.values()):
        archived = await _has_updates_alone(call, session_id)
    return answer(
        {
            "session_id": session_id,
            "counts": counts,
            "newest_at": None,
            "archived": archived,
            "incomplete": incomplete,
        }
    )


async def read_trees(call: ApiCall) -> Response:
    """Read the tasks of a session as trees: which task spawned which. Archived ones too."""
    tasks, incomplete = await tasks_of_session(call.store, call.path["session"])
    if not tasks:
        await _has_updates_alone(call, call.path["session"])
    known = {task.task_id for task in tasks}
    roots = [task for task in tasks if parent_of(task) not in known]
    trees, is_cut = branch_documents(roots, tasks)
    trees = [shown_task(call, tree) for tree in trees]
    return answer({"trees": trees, "incomplete": incomplete or is_cut})


async def forget_session(call: ApiCall) -> Response:
    """Erase a session: its tasks are cancelled, and nothing of it is kept.

    The gateway's user of the Redis server needs the role ``admin``. Who erased is in the log.
    """
    query = call.query_as(ForgetQuery)
    report = await call.client.forget(
        call.path["session"],
        dry_run=query.dry_run,
        running=query.running,
        leave_unset=query.leave_unset,
        timeout_s=_LONGEST_WAIT_S,
        actor=call.principal.subject,
    )
    return answer(report.document())


async def forget_user(call: ApiCall) -> Response:
    """Erase the sessions of a user, and what is kept under the user's name.

    The gateway's user of the Redis server needs the role ``admin``. Who erased is in the log.
    """
    body = call.given(ForgetUserBody)
    report = await call.client.forget_user(
        body.user,
        attribute=body.attribute,
        shared=body.shared,
        dry_run=body.dry_run,
        running=body.running,
        leave_unset=body.leave_unset,
        timeout_s=_LONGEST_WAIT_S,
        actor=call.principal.subject,
    )
    return answer(report.document())


async def _is_gone(call: ApiCall, session_id: str) -> bool:
    """Return whether Redis has no task of a session, and an archive may have some."""
    if not call.store.settings.has_archive:
        return False
    base = call.store.base
    newest = await base.records.members(base.keys.tasks(session_id), newest=1)
    key = base.keys.task(session_id, newest[0]) if newest else None
    if key is not None and await call.store.transport.commands.exists(key):
        return False
    # Tasks of a host are not counted, and are no reason to read the archive.
    return key is None or not await call.store.list_tasks(session_id)


async def _has_updates_alone(call: ApiCall, session_id: str) -> bool:
    """Return whether those of a session without tasks are archived alone. Errors: 404 for none."""
    head = await call.store.updates.page(session_id, after=None, limit=1, task_id=None)
    if head.entries or not head.at_end:
        return False
    if call.store.settings.has_archive:
        reader = call.store.archive
        found = await reader.soon(partial(reader.session, session_id))
        if found is not None and found.updates:
            return True
    raise not_found()


async def _counts(call: ApiCall, session_id: str) -> dict[str, int]:
    counts = await call.client.count(session_id=session_id)
    return {status.value: count for status, count in counts.items()}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions",
        list_sessions,
        "List sessions",
        over=Over.OWN,
        query=PageQuery,
        result=SessionsResult,
        answers=(400, 403),
    ),
    Operation(
        "GET",
        "/v1/sessions/{session}",
        read_session,
        "Count the tasks of a session",
        result=SessionResult,
        answers=(404,),
    ),
    Operation(
        "DELETE",
        "/v1/sessions/{session}",
        forget_session,
        "Erase a session",
        right=Right.ADMIN,
        query=ForgetQuery,
        result=ErasureResult,
        answers=(400, 403, 409),
    ),
    Operation(
        "POST",
        "/v1/users/forget",
        forget_user,
        "Erase a user",
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        body=ForgetUserBody,
        result=ErasureResult,
        answers=(403, 409, 413),
    ),
    Operation(
        "GET",
        "/v1/sessions/{session}/tree",
        read_trees,
        "Read the tasks of a session as trees",
        result=TreeResult,
        answers=(404,),
    ),
)
