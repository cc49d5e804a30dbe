"""Runs over HTTP: begin or join one, answer its interrupts, and connect again."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from redis_state.errors import InvalidField, TaskUnknown
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.chat.ag_ui.stream import RunStream
from redis_state.gateway.chat.places import BEGINNING, EventPlace, read_place
from redis_state.gateway.chat.sending import begin_chat, check_reader, counted_stream
from redis_state.gateway.chat.tasks import (
    CHILDREN,
    ChatTask,
    ChildrenForm,
    InputForm,
    PauseAnswer,
    answer_pauses,
    objects_of,
)
from redis_state.gateway.requests.fields import SomeId
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.response import read_after

_MOST_MESSAGES = 10_000


class _Wire(BaseModel):
    # What a newer client sends beside it is no error.
    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore"
    )


class ResumeEntry(_Wire):
    """An answer to an interrupt. A form's value, or ``{"approved": …, "value": …}``."""

    interrupt_id: SomeId
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentBody(_Wire):
    """RunAgentInput of AG-UI. The thread is the session, and the run is the task."""

    thread_id: SomeId
    run_id: SomeId
    messages: Annotated[list[dict[str, Any]], Field(max_length=_MOST_MESSAGES)]
    state: Any = None
    tools: list[Any] | None = None
    context: list[Any] | None = None
    forwarded_props: Any = None
    resume: Annotated[list[ResumeEntry], Field(max_length=100)] | None = None


class RunQuery(BaseModel):
    """How a handler gets what the client has sent."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    input: InputForm = Field(
        default="conversation",
        description="The task's input: an object with messages, state, tools, context and "
        "forwardedProps, or the text of the last message.",
    )
    children: ChildrenForm = Field(default="names", description=CHILDREN)


class ConnectQuery(BaseModel):
    """From where a client reads on."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    after: str | None = Field(default=None, description="The id of an event, or 0 for all.")
    run_id: str | None = Field(
        default=None, description="The id of the run as the client knows it; else the task's."
    )
    children: ChildrenForm = Field(default="names", description=CHILDREN)


async def run_agent(call: ApiCall) -> Response:
    """Run an agent of AG-UI as a task, and stream its events. The same run again is the same task.
    With ``resume`` the pauses that its interrupts name are decided, and their task continues.
    """
    body, query = call.given(RunAgentBody), call.query_as(RunQuery)
    check_reader(call, body.thread_id)
    counted = counted_stream(call)
    with counted as stack:
        task, place = await _begun(call, body, query.input)
        task = task.showing(query.children)
        stream = RunStream(task, body.run_id, body.messages, body.state)
        is_new = place.within == "^" and not body.resume
        return await begin_chat(stream.chunks(place, is_new=is_new), stack.pop_all())


async def connect_run(call: ApiCall) -> Response:
    """Connect to the run of a task. The header Last-Event-ID, or ``after``, is the id of the last
    event that the client has. Without it the stream opens with what came before. 204: no more.
    """
    query = call.query_as(ConnectQuery)
    task = ChatTask(call, *call.task).showing(query.children)
    with counted_stream(call) as stack:
        if await task.state() is None:
            raise TaskUnknown(task.task_id)
        after = read_after(call.request.scope)
        if after is None:
            place = await task.joined()
        else:
            place = EventPlace(BEGINNING, "^", 0) if after == events.ALL else read_place(after)
        given = await task.given()
        known = [each for each in objects_of(given.get("messages")) if _is_message(each)]
        stream = RunStream(task, query.run_id or task.task_id, known, given.get("state"))
        return await begin_chat(stream.chunks(place), stack.pop_all())


async def _begun(call: ApiCall, body: RunAgentBody, form: InputForm) -> tuple[ChatTask, EventPlace]:
    if body.resume:
        answers = [
            PauseAnswer(each.interrupt_id, each.status == "cancelled", each.payload)
            for each in body.resume
        ]
        return await answer_pauses(call, body.thread_id, answers, claim=body.run_id)
    task = ChatTask(call, body.thread_id, body.run_id)
    given = _last_text(body.messages) if form == "text" else _conversation(body)
    return task, await task.submit(call.path["handler"], given, keyed=True)


def _conversation(body: RunAgentBody) -> dict[str, Any]:
    return {
        "messages": body.messages,
        "state": body.state,
        "tools": body.tools or [],
        "context": body.context or [],
        "forwardedProps": body.forwarded_props,
    }


def _is_message(given: dict[str, Any]) -> bool:
    return isinstance(given.get("id"), str) and isinstance(given.get("role"), str)


def _last_text(messages: list[dict[str, Any]]) -> str:
    """Return the text of the last message. Errors: InvalidField if it has none."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        content = "".join(str(each.get("text", "")) for each in objects_of(content))
    if not isinstance(content, str) or not content:
        raise InvalidField("messages", "need a last message with text")
    return content


OPERATIONS = (
    Operation(
        "POST",
        "/v1/ag-ui/{handler}",
        run_agent,
        "Run an agent of AG-UI",
        right=Right.SUBMIT,
        over=Over.OWN,
        query=RunQuery,
        body=RunAgentBody,
        answers=(403, 404, 409, 413),
        media_type="text/event-stream",
    ),
    Operation(
        "GET",
        "/v1/sessions/{session}/tasks/{task}/ag-ui",
        connect_run,
        "Connect to a run of AG-UI",
        query=ConnectQuery,
        answers=(204, 400, 404, 410),
        media_type="text/event-stream",
    ),
)
