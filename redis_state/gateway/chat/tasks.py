"""The tasks behind a chat: submitted once by their ids, joined, and decided by who resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from redis_state.errors import (
    ArchiveUnavailable,
    CorruptState,
    InvalidField,
    KeyReused,
    PayloadUnreadable,
    RedisStateError,
    RetryRefused,
    TaskUnknown,
)
from redis_state.gateway.answers import HttpProblem, forbidden, problem_of
from redis_state.gateway.auth.principal import Principal, Right
from redis_state.gateway.calls import ApiCall
from redis_state.gateway.chat.places import EventPlace
from redis_state.gateway.chat.rows import TaskRow, TaskRows
from redis_state.gateway.chat.subtree_parts import SubtreeParts
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.gateway.routes.tasks.pauses import decidable_pause, decide
from redis_state.gateway.showing.cutting import cut_tokens
from redis_state.gateway.showing.documents import pause_document
from redis_state.gateway.showing.known_pauses import KnownPause
from redis_state.gateway.showing.visible import shown_content, shown_error
from redis_state.gateway.streaming.subtree import TaskSubtree
from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.models.tasks import parent_of
from redis_state.serialization import codec
from redis_state.worker.client.submitted import check_submitted
from redis_state.worker.tasks.operate.copies import Copies
from redis_state.worker.tasks.views.stream import view_task

T = TypeVar("T")

# What a handler gets as its input: all that the client sent, or the text of its last message.
InputForm: TypeAlias = Literal["conversation", "text"]
# What a chat has of the tasks below its own: that they are there, or their texts too.
ChildrenForm: TypeAlias = Literal["names", "text"]
CHILDREN: Final = "Of the tasks below it: their names, or also their texts, up to 8 levels deep."
_SLEEP = "sleep"
_DEEPEST = 100
# Of the answers to pauses that one call has.
_AT_ONCE = 10
_NO_INPUT = (TaskUnknown, RetryRefused, CorruptState, PayloadUnreadable, ArchiveUnavailable)


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """What a client answers to a pause. ``value`` is None beside a decision without one."""

    pause_id: str
    cancelled: bool
    payload: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChatTask:
    """A task as one caller reads it."""

    call: ApiCall
    session_id: str
    task_id: str
    # There if the texts of the tasks below it are shown.
    subtree: TaskSubtree | None = field(default=None, compare=False)

    def showing(self, children: ChildrenForm) -> ChatTask:
        """Return it with or without the texts of the tasks below it."""
        return self if children == "names" else replace(self, subtree=TaskSubtree(self.task_id))

    def parts(self, state: Any = None, *, keeps_texts: bool = True) -> TaskParts:
        """Return a reader of its rows."""
        kind = TaskParts if self.subtree is None else SubtreeParts
        return kind(self.task_id, state, keeps_texts=keeps_texts)

    @property
    def rows(self) -> TaskRows:
        """Its rows as this caller may see them."""
        services, principal = self.call.services, self.call.principal
        visible = None if services.visible is None else partial(_visible, services, principal)
        most = services.usage.limits.chat_bytes
        return TaskRows(
            services.hub,
            self.session_id,
            self.task_id,
            most,
            visible,
            principal.expires_at,
            self.subtree,
            self.call.has_same_caller,
        )

    async def submit(self, handler: str, task_input: Any, *, keyed: bool) -> EventPlace:
        """Submit it, or find it if it is there.

        Its id is the caller's own key if it is ``keyed``, else follows from what is submitted.
        Errors: KeyReused for one of another handler or, under a key, with another input.
        """
        # Read first: a task that is not there then has no row before this place.
        end = await self.rows.end()
        view = await view_task(self.call.store, self.session_id, self.task_id)
        if view is None:
            if not self.call.principal.may(Right.SUBMIT, self.session_id):
                raise forbidden()
            try:
                await self.call.client.submit_or_find(
                    handler, task_input, session_id=self.session_id, task_id=self.task_id
                )
            except KeyReused:
                # Another call has submitted it meanwhile, with more of what was said before.
                if keyed:
                    raise
        elif view.handler != handler:
            raise KeyReused("task", key=self.task_id)
        elif keyed:
            task = self.session_id, self.task_id
            await check_submitted(self.call.store, *task, handler=handler, task_input=task_input)
        # Another call may have submitted it meanwhile: all of its rows are behind this place too.
        return EventPlace(end, "^" if view is None else "~", 0)

    async def joined(self) -> EventPlace:
        """Return the place of a client that knows nothing of the task yet."""
        return EventPlace(await self.rows.end(), "~", 0)

    async def is_below(self, handler: str) -> bool:
        """Return whether it is a task of a handler, or was spawned by one, at any depth.

        False for an unknown task, and for one whose parents are not kept. Errors: those of the
        store.
        """
        task_id: str | None = self.task_id
        seen = set[str]()
        while task_id is not None and task_id not in seen and len(seen) < _DEEPEST:
            seen.add(task_id)
            view = await self.call.client.inspect(self.session_id, task_id)
            if view is None or view.handler == handler:
                return view is not None
            task_id = parent_of(view.state)
        return False

    async def state(self) -> TaskState | None:
        """Read it."""
        return await self.call.client.get(self.session_id, self.task_id)

    async def given(self) -> dict[str, Any]:
        """Return the input that it was submitted with, if that is a conversation that can be read.

        Errors: those of the store.
        """
        try:
            source = await Copies(self.call.store).source(self.session_id, self.task_id)
        except _NO_INPUT:
            return {}
        found = cut_tokens(self.session_id, source.task_input)
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    async def kept_until(self, cursor: str, state: Any = None) -> TaskParts:
        """Read what the rows up to a cursor say. Errors: those of the store."""
        parts = self.parts(state)
        async with aclosing(self.rows.past(cursor)) as past:
            async for row in past:
                parts.feed(row.update)
                if row.is_old:
                    parts.pass_by()
        return parts

    async def asks_in(self, row: TaskRow, parts: TaskParts) -> list[dict[str, Any]]:
        """Return the pauses that the task waits for at a row of its own; none at another's."""
        return await self.asks(parts, row.cursor) if row.update.task_id == self.task_id else []

    async def asks(self, parts: TaskParts, cursor: str) -> list[dict[str, Any]]:
        """Return the pauses that the task waits for at a row; none if it continued."""
        pauses = await self.open_pauses() if parts.halted else []
        if self.call.services.visible is not None:
            pauses = [_as_shown(each, parts.asked.get(each["pause_id"], {})) for each in pauses]
        if all(each["pause_id"] not in parts.asked for each in pauses):
            # They were opened later: what the task has said until then comes first.
            return [] if pauses and await self.rows.moves_after(cursor) else pauses
        return pauses

    async def open_pauses(self) -> list[dict[str, Any]]:
        """Return the documents of what the task asks, the oldest first. A sleep asks nothing."""
        return [
            pause_document(each)
            for each in await self.call.client.pauses(self.session_id)
            if each.task_id == self.task_id
            and each.pause_id is not None
            and (each.reason != _SLEEP or each.payload is not None)
        ]

    def end_of(self, state: TaskState | None) -> tuple[TaskStatus | None, Any, str | None]:
        """Return status, result and error of a terminal task, as this caller may see them.

        A host's filter gets updates of the types RESULT and STATUS_CHANGE.
        """
        if state is None:
            return None, None, None
        task = self.session_id, self.task_id
        result = shown_content(self.call, *task, UpdateType.RESULT, state.result)
        error = shown_error(self.call, *task, state.status, state.error)
        cut = partial(cut_tokens, self.session_id)
        return state.status, cut(result), cut(error)


def _as_shown(pause: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return a pause with what its row says as the caller sees it; without content if it does not.

    The pause itself is shown: the run of a protocol ends with it.
    """
    return pause | {
        "name": row.get("pause", ""),
        "reason": row.get("reason", ""),
        "payload": row.get("payload"),
        "schema": row.get("schema"),
    }


def _visible(services: Any, principal: Principal, update: StateUpdate) -> StateUpdate | None:
    """Show what a host's filter shows, and the status, which each reader may read."""
    shown: StateUpdate | None = services.visible(principal, update)
    match update.update_type, update.content:
        case UpdateType.STATUS_CHANGE, {"status": str(status)} if shown is None:
            return update.model_copy(update={"content": {"status": status}})
        case _:
            return shown


async def answer_pauses(
    call: ApiCall, session_id: str, answers: Sequence[PauseAnswer], *, claim: str
) -> tuple[ChatTask, EventPlace]:
    """Decide pauses of one task, several at once; return it, and where its reader is.

    The same answers under the same claim are a repetition: then the client joins what came of them.
    Each answer has an outcome of its own: one that is refused stops no other. Errors: InvalidField,
    before anything is decided; HttpProblem, of the first answer that is refused. If there are
    several answers, it lists the outcome of each, in their order.
    """
    if len({each.pause_id for each in answers}) != len(answers):
        raise InvalidField("resume", "answers each pause of one task once")
    known = await _outcomes([partial(decidable_pause, call, each.pause_id) for each in answers])
    found = [each for each in known if not isinstance(each, HttpProblem)]
    if not found:
        raise _refused(answers, known)
    if len({(each.session_id, each.task_id) for each in found}) != 1:
        raise InvalidField("resume", "answers each pause of one task once")
    if found[0].session_id != session_id:
        raise InvalidField("resume", "answers pauses of another session")
    task = ChatTask(call, session_id, found[0].task_id)
    end = await task.rows.end()
    pairs = zip(answers, known, strict=True)
    decided = await _outcomes([partial(_answer, call, *each, claim=claim) for each in pairs])
    if any(isinstance(each, HttpProblem) for each in decided):
        raise _refused(answers, decided)
    fresh = all(each.is_open for each in found)
    return task, EventPlace(end, "^", 0) if fresh else await task.joined()


async def _answer(
    call: ApiCall, given: PauseAnswer, pause: KnownPause | HttpProblem, *, claim: str
) -> None:
    """Decide a pause that was found. Errors: HttpProblem, also that of one that was not."""
    if isinstance(pause, HttpProblem):
        raise pause
    approved, value = _decision(given, has_form=pause.has_form)
    subject = call.principal.subject
    own = codec.fingerprint(subject, claim, given.pause_id)
    await decide(call, pause, approved=approved, value=value, actor=subject, claim=own)


async def _outcomes(acts: Sequence[Callable[[], Awaitable[T]]]) -> list[T | HttpProblem]:
    """Do what is listed, a few at once; return in its order what each returns, or its problem."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(act: Callable[[], Awaitable[T]]) -> T | HttpProblem:
        async with gate:
            try:
                return await act()
            except HttpProblem as problem:
                return problem
            except RedisStateError as error:
                return problem_of(error)

    return await asyncio.gather(*map(one, acts))


def _refused(answers: Sequence[PauseAnswer], outcomes: Sequence[Any]) -> HttpProblem:
    """Return the first problem; if there are several answers, with the outcome of each."""
    first: HttpProblem = next(each for each in outcomes if isinstance(each, HttpProblem))
    if len(answers) == 1:
        return first
    listed = [
        {"pause_id": given.pause_id, "ok": False, "error": outcome.document()}
        if isinstance(outcome, HttpProblem)
        else {"pause_id": given.pause_id, "ok": True}
        for given, outcome in zip(answers, outcomes, strict=True)
    ]
    facts = {**first.facts, "answers": listed}
    return HttpProblem(first.status, first.code, first.message, headers=first.headers, facts=facts)


def _decision(given: PauseAnswer, *, has_form: bool) -> tuple[bool, Any]:
    if given.cancelled:
        return False, given.payload
    match given.payload:
        case {"approved": bool(approved), **more} if not has_form and not more.keys() - {"value"}:
            return approved, more.get("value")
        case payload:
            return True, payload


def objects_of(given: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none of anything else."""
    items: list[Any] = cast("Any", given) if isinstance(given, list) else []
    return [cast("Any", each) for each in items if isinstance(each, dict)]
