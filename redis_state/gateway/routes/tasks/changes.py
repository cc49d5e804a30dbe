"""What is done to one task: steer, cancel, retry, rerun, fork. The actor is the caller."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from redis_state.errors import InvalidField, InvalidTransition, TaskUnknown
from redis_state.gateway.answers import answer, forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation
from redis_state.gateway.chosen import check_chosen, chosen_by
from redis_state.gateway.requests.bodies import CancelBody, ForkBody, NoBody, RerunBody, SteerBody
from redis_state.gateway.results import MadeResult, MovedResult, SteeredResult
from redis_state.gateway.routes.tasks.tasks import new_id_of
from redis_state.models import SteeringEventType
from redis_state.primitives.listed import behind_a_write
from redis_state.worker import TaskView
from redis_state.worker.tasks.operate.copies import check_copied, check_forked

_TASK = "/v1/sessions/{session}/tasks/{task}"
_DECISIONS = (SteeringEventType.APPROVE, SteeringEventType.REJECT)


async def steer_task(call: ApiCall) -> Response:
    """Send a steering event to a task that runs or waits: once for each key of a caller."""
    body, (session_id, task_id) = call.given(SteerBody), call.task
    if body.type in _DECISIONS or "resume_token" in body.payload:
        # Reading is not deciding, and neither is steering: that is a right of its own.
        raise InvalidField("type", "a pause is decided by its id: POST /v1/pauses/{id}/decision")
    event = await call.client.steer(
        session_id,
        task_id,
        body.type,
        body.payload,
        source=call.principal.subject,
        event_id=call.own_key("steer", session_id, task_id),
    )
    document = {
        "session_id": session_id,
        "task_id": task_id,
        "event_id": event.event_id,
        "type": event.event_type.value,
        "source": event.source,
    }
    return answer(document, 202)


async def cancel_task(call: ApiCall) -> Response:
    """Cancel a task: at once if it waits, at its next checkpoint if it runs."""
    body, (session_id, task_id) = call.given(CancelBody), call.task
    done = await call.client.cancel(
        session_id,
        task_id,
        reason=body.reason,
        hard=body.hard,
        idempotency_key=call.own_key("cancel", session_id, task_id),
    )
    with behind_a_write(call.store.transport.address):
        state = await call.client.get(session_id, task_id)
    if state is None:
        raise TaskUnknown(task_id)
    if not done:
        raise InvalidTransition(task_id, current=state.status.value, wanted="CANCELLED")
    return answer({"session_id": session_id, "task_id": task_id, "status": state.status.value}, 202)


async def retry_task(call: ApiCall) -> Response:
    """Reopen a FAILED or CANCELLED task with its journal."""
    session_id, task_id = call.task
    state = await call.client.retry(session_id, task_id, idempotency_key=call.own_key())
    return answer({"session_id": session_id, "task_id": task_id, "status": state.status.value})


async def rerun_task(call: ApiCall) -> Response:
    """Submit a new task with the input and the handler of another."""
    body, (session_id, task_id) = call.given(RerunBody), call.task
    target = session_id if body.new_session_id is None else body.new_session_id
    _check_copy(call, target)
    chosen = chosen_by(call, "rerun", body, "new_task_id", "new_session_id")
    made = await call.client.rerun(
        session_id,
        task_id,
        new_task_id=new_id_of(call, body.new_task_id, "new_task_id"),
        new_session_id=target,
        attributes=body.attributes,
        queue=body.queue,
        sent=None if chosen is None else chosen.kept,
    )
    view = await _made(call, target, made)
    if view is not None:
        check_copied("rerun", view.rerun_of, session_id, task_id)
    await check_chosen(call, target, made, chosen)
    return answer({"session_id": target, "task_id": made}, 201)


async def fork_task(call: ApiCall) -> Response:
    """Submit a new task that begins with another one's journal."""
    body, (session_id, task_id) = call.given(ForkBody), call.task
    _check_copy(call, session_id)
    chosen = chosen_by(call, "fork", body, "new_task_id", "before")
    made = await call.client.fork(
        session_id,
        task_id,
        before=body.before,
        new_task_id=new_id_of(call, body.new_task_id, "new_task_id"),
        attributes=body.attributes,
        queue=body.queue,
        sent=None if chosen is None else chosen.kept,
    )
    view = await _made(call, session_id, made)
    if view is not None:
        check_forked(check_copied("fork", view.forked_from, session_id, task_id), body.before)
    await check_chosen(call, session_id, made, chosen)
    return answer({"session_id": session_id, "task_id": made}, 201)


async def _made(call: ApiCall, session_id: str, made: str) -> TaskView | None:
    """Return what stands under the caller's key; None without a key."""
    if call.idempotency_key() is None:
        return None
    with behind_a_write(call.store.transport.address):
        return await call.client.inspect(session_id, made)


def _check_copy(call: ApiCall, target: str) -> None:
    """Require the right to read what is copied: a copy's runs show it."""
    if not call.principal.may(Right.READ, call.task[0]):
        raise forbidden("the caller may not read the task")
    # An empty new session means that of the task.
    elsewhere = target == "" != call.task[0]
    if elsewhere or not call.principal.may(Right.SUBMIT, target):
        raise forbidden("the caller may not submit to that session")


def _change(
    name: str, endpoint: Any, summary: str, body: Any, result: Any, **more: Any
) -> Operation:
    return Operation(
        "POST",
        f"{_TASK}/{name}",
        endpoint,
        summary,
        body=body,
        result=result,
        answers=(403, 404, 409, 410, 413),
        **more,
    )


OPERATIONS = (
    _change(
        "steer",
        steer_task,
        "Steer a task",
        SteerBody,
        SteeredResult,
        right=Right.STEER,
        status=202,
        key="A repeated call of this caller sends one event.",
    ),
    _change(
        "cancel",
        cancel_task,
        "Cancel a task",
        CancelBody,
        MovedResult,
        right=Right.STEER,
        status=202,
        key="A repeated call of this caller cancels the task once, and gets what became of it.",
    ),
    _change(
        "retry",
        retry_task,
        "Reopen a task",
        NoBody,
        MovedResult,
        right=Right.STEER,
        key="A repeated call of this caller reopens the task once.",
    ),
    _change(
        "rerun",
        rerun_task,
        "Submit a task again",
        RerunBody,
        MadeResult,
        right=Right.SUBMIT,
        status=201,
        key="The new task's id.",
    ),
    _change(
        "fork",
        fork_task,
        "Fork a task",
        ForkBody,
        MadeResult,
        right=Right.SUBMIT,
        status=201,
        key="The new task's id.",
    ),
)
