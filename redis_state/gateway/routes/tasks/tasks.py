"""Tasks: submit and find them, and read one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.responses import Response

from redis_state.errors import CorruptState, InvalidField, TaskUnknown
from redis_state.gateway.answers import answer, forbidden, not_found
from redis_state.gateway.archived_updates import (
    archived_updates,
    updates_of_task,
    updates_over_gap,
)
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.chosen import check_chosen, chosen_by
from redis_state.gateway.requests.bodies import CANCELS, SubmitBody
from redis_state.gateway.requests.fields import seconds, utc
from redis_state.gateway.requests.queries import (
    DeadQuery,
    FindQuery,
    TimelineQuery,
)
from redis_state.gateway.results import (
    DeadResult,
    FullStepResult,
    StepsResult,
    SubmittedResult,
    TaskBranchResult,
    TaskResult,
    TasksResult,
    TimelineResult,
)
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.gateway.showing.documents import (
    branch_documents,
    compensation_document,
    pause_document,
    step_document,
    summary_document,
    view_document,
)
from redis_state.gateway.showing.visible import shown_pause, shown_rows, shown_task
from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.models.attributes import read_attributes
from redis_state.stores.sessions.session_log import EntryPage
from redis_state.worker import Archived, TaskView
from redis_state.worker.tasks.views.branches import tasks_of_branch
from redis_state.worker.tasks.views.stream import view_task

_TASK = "/v1/sessions/{session}/tasks/{task}"
_LARGEST_VERSION = 2**53
# What a new task may do to others of its session.


async def find_tasks(call: ApiCall) -> Response:
    """Find tasks that match every filter. A caller of some sessions names one of them."""
    query = call.query_as(FindQuery)
    session_id = query.session_id
    if not call.principal.everywhere(Right.READ):
        named = call.principal.named("session", Right.READ)
        session_id = named[0] if session_id is None and len(named) == 1 else session_id
        if session_id is None or not call.principal.may(Right.READ, session_id):
            raise forbidden("name a session that the caller may read, as session_id")
    page = await call.client.find(
        archived=_archived(call, query.archived),
        newest_first=not query.oldest_first,
        limit=query.limit,
        after=query.after,
        status=query.status,
        handler=query.handler,
        session_id=session_id,
        attributes=read_attributes("attribute", query.attribute or ()),
        created_after=utc(query.created_after),
        created_before=utc(query.created_before),
        ended_after=utc(query.ended_after),
        ended_before=utc(query.ended_before),
    )
    document = {
        "tasks": [shown_task(call, summary_document(each)) for each in page.tasks],
        "cursor": page.cursor,
    }
    return answer(document | {"incomplete": page.incomplete})


async def list_dead(call: ApiCall) -> Response:
    """List dead letters, the last first: FAILED tasks that were given up."""
    query = call.query_as(DeadQuery)
    page = await call.client.list_dead(limit=query.limit, after=query.after)
    views = await asyncio.gather(*(_dead_letter(call, each) for each in page.tasks))
    dead = [shown_task(call, view_document(view)) for view in views if view is not None]
    return answer({"tasks": dead, "cursor": page.cursor, "more": page.cursor is not None})


async def _dead_letter(call: ApiCall, state: TaskState) -> TaskView | None:
    try:
        view = await view_task(call.store, state.session_id, state.task_id)
    except CorruptState:
        # One damaged record takes no other from the list.
        return None
    # It may have been retried, or be gone, by now.
    return view if view is not None and view.state.status is TaskStatus.FAILED else None


async def submit_task(call: ApiCall) -> Response:
    """Submit a task. Idempotency-Key is its id: the same id is the same task.

    Another handler or input under the id is 409, also if the id is in the body.
    """
    body = call.given(SubmitBody)
    if not call.principal.may(Right.SUBMIT, body.session_id):
        raise forbidden()
    if body.on_busy in CANCELS and not call.principal.may(Right.STEER, body.session_id):
        raise forbidden("the caller may not cancel the session's other tasks")
    task_id = new_id_of(call, body.task_id, "task_id")
    body.at = utc(body.at)
    chosen = chosen_by(call, "task", body, "task_id", "session_id", "handler", "input")
    found = await call.client.submit_or_find(
        body.handler,
        body.input,
        session_id=body.session_id,
        task_id=task_id,
        priority=body.priority,
        description=body.description,
        trace_id=body.trace_id,
        queue=body.queue,
        delay=seconds(body.delay_s),
        at=body.at,
        limit_key=body.limit_key,
        in_turn=body.in_turn,
        on_busy=body.on_busy,
        attributes=body.attributes,
        sent=None if chosen is None else chosen.kept,
    )
    if not found.is_new:
        await check_chosen(call, body.session_id, found.task_id, chosen)
    document = {"session_id": body.session_id, "task_id": found.task_id, "created": found.is_new}
    return answer(document, 201 if found.is_new else 200)


async def read_task(call: ApiCall) -> Response:
    """Read a task with what its workers know of it."""
    return answer(shown_task(call, view_document(await _found(call))))


async def read_tree(call: ApiCall) -> Response:
    """Read a task and those that it has spawned."""
    view = await _found(call)
    tasks, incomplete = await tasks_of_branch(call.store, view.state, archived=view.archived)
    (branch,), is_cut = branch_documents([view.state], tasks)
    return answer(shown_task(call, branch) | {"incomplete": incomplete or is_cut})


async def read_timeline(call: ApiCall) -> Response:
    """Read all that is known of a task's runs: steps with their times, pauses, updates."""
    session_id, task_id = call.task
    view = await _found(call)
    steps, undos, pauses = await asyncio.gather(
        call.client.snapshots(session_id, task_id),
        call.client.compensations(session_id, task_id),
        call.client.pauses(session_id),
    )
    return answer(
        await _task_and_rows(call, view)
        | {
            "steps": [step_document(session_id, step) for step in steps],
            "compensations": [compensation_document(session_id, undo) for undo in undos],
            "pauses": [
                shown_pause(call, pause_document(each))
                for each in pauses
                if each.task_id == task_id
            ],
        }
    )


async def read_rows(call: ApiCall) -> Response:
    """Read a task and a page of its updates: a timeline without what its journal and pauses say."""
    return answer(await _task_and_rows(call, await _found(call)))


async def _task_and_rows(call: ApiCall, view: TaskView) -> dict[str, Any]:
    query, (session_id, task_id) = call.query_as(TimelineQuery), call.task
    if view.archived:
        read = partial(_archived_page, call, query.limit)
        found = await updates_over_gap(read, query.after)
    else:
        found = await updates_of_task(
            call.store, session_id, task_id, after=query.after, limit=query.limit
        )
    return {
        "task": shown_task(call, view_document(view)),
        "rows": shown_rows(call, found.page.entries),
        "missed": found.missed,
        "cursor": found.page.cursor,
        "at_end": found.page.at_end,
        "incomplete": found.incomplete,
    }


async def _archived_page(call: ApiCall, limit: int, after: str | None) -> EntryPage[StateUpdate]:
    session_id, task_id = call.task
    return await archived_updates(call.store, session_id, after=after, limit=limit, task_id=task_id)


async def list_snapshots(call: ApiCall) -> Response:
    """List the recorded steps of a task in order, without their results."""
    await _found(call)
    session_id, task_id = call.task
    steps = await call.client.snapshots(session_id, task_id)
    return answer({"snapshots": [step_document(session_id, step) for step in steps]})


async def read_snapshot(call: ApiCall) -> Response:
    """Read one recorded step with its result."""
    session_id, task_id = call.task
    version = call.path["version"]
    if not (version.isascii() and version.isdecimal()) or int(version[:17]) > _LARGEST_VERSION:
        raise not_found()
    step = await call.client.snapshot(session_id, task_id, int(version[:17]))
    if step is None:
        raise not_found()
    result = cut_tokens(session_id, step.result)
    return answer(step_document(session_id, step) | {"result": result})


def new_id_of(call: ApiCall, given: str | None, field: str) -> str | None:
    """Return the id of what a call makes: the header's, or the body's. Errors: InvalidField."""
    key = call.idempotency_key()
    if key is not None and given not in (None, key):
        raise InvalidField(field, "is not that of Idempotency-Key")
    if given == "":
        raise InvalidField(field, "needs a character or more")
    return key if given is None else given


def _archived(call: ApiCall, wanted: Archived) -> Archived:
    if wanted is not Archived.NO and not call.store.settings.has_archive:
        raise InvalidField("archived", "this gateway has no archive")
    return wanted


async def _found(call: ApiCall) -> TaskView:
    view = await call.client.inspect(*call.task)
    if view is None:
        raise TaskUnknown(call.task[1])
    return view


def _read(path: str, endpoint: Any, summary: str, result: Any, **more: Any) -> Operation:
    more = {"answers": (404, 410)} | more
    return Operation("GET", path, endpoint, summary, result=result, **more)


# Not served: the console's own, for a page that has the rest already.
READ_ROWS = _read(f"{_TASK}/rows", read_rows, "Read on", TimelineResult, query=TimelineQuery)
OPERATIONS = (
    Operation(
        "GET",
        "/v1/tasks",
        find_tasks,
        "Find tasks",
        over=Over.OWN,
        query=FindQuery,
        result=TasksResult,
        answers=(400, 403),
    ),
    Operation(
        "GET",
        "/v1/tasks/dead",
        list_dead,
        "List dead letters",
        over=Over.EVERYTHING,
        query=DeadQuery,
        result=DeadResult,
        answers=(400, 403),
    ),
    Operation(
        "POST",
        "/v1/tasks",
        submit_task,
        "Submit a task",
        right=Right.SUBMIT,
        over=Over.OWN,
        body=SubmitBody,
        result=SubmittedResult,
        status=201,
        answers=(200, 403, 409, 413),
        key="The task's id: a repeated call returns the same task.",
    ),
    _read(_TASK, read_task, "Read a task", TaskResult),
    _read(f"{_TASK}/tree", read_tree, "Read a task and its children", TaskBranchResult),
    _read(
        f"{_TASK}/timeline",
        read_timeline,
        "Read the runs of a task",
        TimelineResult,
        query=TimelineQuery,
    ),
    _read(f"{_TASK}/snapshots", list_snapshots, "List the recorded steps of a task", StepsResult),
    _read(
        f"{_TASK}/snapshots/{{version}}",
        read_snapshot,
        "Read one recorded step with its result",
        FullStepResult,
        answers=(404, 409, 410),
    ),
)
