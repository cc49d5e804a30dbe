"""A chat over HTTP, as the AI SDK's `useChat` calls it: send, resume, and a stop that stops."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from redis_state.errors import InvalidField, TaskUnknown
from redis_state.gateway.answers import answer
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.chat.ai_sdk.stream import MessageStream
from redis_state.gateway.chat.places import EventPlace
from redis_state.gateway.chat.sending import NOTHING, begin_chat, check_reader, counted_stream
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
from redis_state.gateway.results import MovedResult
from redis_state.models import TaskStatus
from redis_state.serialization import codec

_HEADER = ((b"x-vercel-ai-ui-message-stream", b"v1"),)
_UNFINISHED = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED)
_ANSWERED = "approval-responded"
# As a rule the first task is the one. Its children are newer, while it has some.
_LISTED = 20


class ChatBody(BaseModel):
    """What `DefaultChatTransport` sends. The chat is the session, a new message is a task."""

    # A page adds what its handler is to have.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    id: SomeId
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Annotated[str | None, Field(alias="messageId")] = None


class ChatQuery(BaseModel):
    """How a pause is shown, and how a handler gets what the client has sent.

    A transport adds the same query to all of its calls.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    approvals: Literal["tool", "data"] = Field(
        default="tool",
        description="A pause is a tool that asks for approval and a data part, or only the latter: "
        "AI SDK 5 has no approvals.",
    )
    input: InputForm = Field(
        default="conversation",
        description="The task's input: the object that was sent, or the text of the last message.",
    )
    children: ChildrenForm = Field(default="names", description=CHILDREN)


class ResumeQuery(ChatQuery):
    """Which message is streamed."""

    task: SomeId | None = Field(
        default=None,
        description="The id of a task of the chat's handler, or of one below such a task; else the "
        "newest one that is unfinished.",
    )


async def chat(call: ApiCall) -> Response:
    """Answer the last message of a chat by a task, and stream what it says. The same message again
    is the same task. Approvals in the last message decide pauses, and their task continues.
    """
    body, query = call.given(ChatBody), call.query_as(ChatQuery)
    check_reader(call, body.id)
    with counted_stream(call) as stack:
        answers = _answers(body.messages[-1])
        if answers:
            # A message has the earlier answers too: each is a repetition of its own.
            task, place = await answer_pauses(call, body.id, answers, claim="approvals")
        else:
            task = ChatTask(call, body.id, await _task_id(call, body))
            given, keyed = _given(body, query.input), call.idempotency_key() is not None
            place = await task.submit(call.path["handler"], given, keyed=keyed)
        task, since = task.showing(query.children), frozenset(each.pause_id for each in answers)
        stream = MessageStream(task, approvals=query.approvals == "tool", since=since)
        is_new = place.within == "^" and not answers
        return await begin_chat(stream.chunks(place, is_new=is_new), stack.pop_all(), _HEADER)


async def resume_chat(call: ApiCall) -> Response:
    """Stream the message that a chat's newest unfinished task writes, from its begin; or that of a
    given task, also of one that has ended. 204: there is none.
    """
    query = call.query_as(ResumeQuery)
    with counted_stream(call) as stack:
        task = await (_newest(call) if query.task is None else _given_task(call, query.task))
        if task is None:
            return _nothing()
        task = task.showing(query.children)
        stream = MessageStream(task, approvals=query.approvals == "tool")
        place: EventPlace = await task.joined()
        return await begin_chat(stream.chunks(place), stack.pop_all(), _HEADER)


async def stop_chat(call: ApiCall) -> Response:
    """Cancel a chat's newest unfinished task: at once if it waits, at its next checkpoint if it
    runs. 204: there is none.
    """
    task = await _newest(call)
    if task is None:
        return _nothing()
    await call.client.cancel(task.session_id, task.task_id, reason="stopped")
    state = await task.state()
    if state is None:
        return _nothing()
    document = {"session_id": task.session_id, "task_id": task.task_id}
    return answer({**document, "status": state.status.value}, 202)


def _nothing() -> Response:
    return Response(status_code=NOTHING, headers={"cache-control": "no-store"})


async def _given_task(call: ApiCall, task_id: str) -> ChatTask:
    task = ChatTask(call, call.path["session"], task_id)
    if not await task.is_below(call.path["handler"]):
        raise TaskUnknown(task_id)
    return task


async def _newest(call: ApiCall) -> ChatTask | None:
    session_id = call.path["session"]
    after: str | None = None
    while True:
        page = await call.client.find(
            newest_first=True,
            limit=_LISTED,
            after=after,
            status=_UNFINISHED,
            handler=call.path["handler"],
            session_id=session_id,
        )
        # A child of the same handler is a part of its parent's answer.
        own = next((each for each in page.tasks if each.parent is None), None)
        if own is not None:
            return ChatTask(call, session_id, own.task_id)
        # A page without one may have others behind it: what it listed has ended, or is gone.
        after = page.cursor
        if after is None:
            return None


async def _task_id(call: ApiCall, body: ChatBody) -> str:
    """Return the id of a message's task: that of a repeated request is the same.

    An edited message keeps its id and has other parts. A message is to be answered again, and no
    answer is named: it has the next task as soon as the last one has ended.
    """
    key = call.idempotency_key()
    if key is not None:
        return key
    last = next((each for each in reversed(body.messages) if each.get("role") == "user"), None)
    asked = None if last is None else last.get("id")
    if not isinstance(asked, str) or not asked:
        raise InvalidField("messages", "need a last message of the user with an id")
    written = [last.get("parts"), last.get("content")] if last else []
    again = body.trigger == "regenerate-message"
    named = [body.trigger, body.message_id] if again else []
    task_id = codec.fingerprint("chat", call.path["handler"], body.id, asked, written, *named)
    if not again or body.message_id not in (None, asked):
        return task_id
    return await _next_id(call, body.id, task_id)


async def _next_id(call: ApiCall, session_id: str, first: str) -> str:
    """Return the id of the first of numbered tasks that has not ended, or is not there.

    All before it have ended, so it is found by halves: in as many reads as its number has digits in
    base 2, twice.
    """

    def named(number: int) -> str:
        return first if number == 1 else codec.fingerprint(first, number)

    async def has_ended(number: int) -> bool:
        view = await call.store.tasks.look(session_id, named(number))
        return view is not None and view.status.is_terminal

    over, wanted = 0, 1
    while await has_ended(wanted):
        over, wanted = wanted, 2 * wanted
    while wanted - over > 1:
        middle = (over + wanted) // 2
        over, wanted = (middle, wanted) if await has_ended(middle) else (over, middle)
    return named(wanted)


def _answers(message: dict[str, Any]) -> list[PauseAnswer]:
    """Return the decisions in a message: its tools that wait for what was approved or denied."""
    found: list[PauseAnswer] = []
    for part in objects_of(message.get("parts")):
        match part:
            case {
                "state": state,
                "toolCallId": str(call_id),
                "approval": {"id": str(pause_id), "approved": bool(approved), **more},
            } if state == _ANSWERED and call_id == pause_id:
                found.append(PauseAnswer(pause_id, not approved, more.get("reason")))
            case _:
                pass
    return found


def _given(body: ChatBody, form: InputForm) -> Any:
    if form == "conversation":
        return body.model_dump(by_alias=True, exclude_none=True)
    parts = objects_of(body.messages[-1].get("parts"))
    text = "".join(str(each.get("text", "")) for each in parts if each.get("type") == "text")
    if not text:
        raise InvalidField("messages", "need a last message with text")
    return text


_CHAT = "/v1/ai-sdk/{handler}"

OPERATIONS = (
    Operation(
        "POST",
        _CHAT,
        chat,
        "Send a message of the AI SDK",
        right=Right.SUBMIT,
        over=Over.OWN,
        query=ChatQuery,
        body=ChatBody,
        answers=(403, 404, 409, 413),
        key="The task's id; else it follows from the last message of the user.",
        media_type="text/event-stream",
    ),
    Operation(
        "GET",
        f"{_CHAT}/{{session}}/stream",
        resume_chat,
        "Resume a message of the AI SDK",
        query=ResumeQuery,
        answers=(204, 404),
        media_type="text/event-stream",
    ),
    Operation(
        "POST",
        f"{_CHAT}/{{session}}/stop",
        stop_chat,
        "Stop a message of the AI SDK",
        query=ChatQuery,
        right=Right.STEER,
        result=MovedResult,
        status=202,
        answers=(204, 403, 404),
    ),
)
