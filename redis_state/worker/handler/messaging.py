"""The messages, values and texts of a running task, for its handler."""

from __future__ import annotations

from asyncio import CancelledError
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from math import inf
from typing import Any, ParamSpec

from redis_state.errors import InvalidMessage
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.handler.calls import ContextCalls
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.execution.inbox import Inbox, refuse_in_undo
from redis_state.worker.tasks.execution.retries import Retried, retried
from redis_state.worker.tasks.messaging.mailbox import HOLD_S, Mailbox, Receiving, TaskMessage
from redis_state.worker.tasks.messaging.messages import REQUEST_TIMEOUT_S, Box, Kind, TaskMessages
from redis_state.worker.tasks.messaging.payloads import (
    check_name,
    check_type,
    read_payload,
    write_payload,
)
from redis_state.worker.tasks.messaging.text import (
    JOIN_BYTES,
    JOIN_MS,
    Texts,
    TextWriter,
    write_all,
)
from redis_state.worker.tasks.messaging.values import Values
from redis_state.worker.tasks.started import StartedRun

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a task received. Reply to it once, or refuse it."""

    message: TaskMessage
    payload: Any = field(repr=False)
    _box: str = field(repr=False)
    _mailbox: Mailbox = field(repr=False)

    @property
    def request_id(self) -> str:
        """The id of the request, as its sender has it."""
        return self.message.message_id

    @property
    def sender(self) -> str:
        """Who sent it."""
        return self.message.sender

    async def reply(self, value: Any = None) -> None:
        """Reply. The first reply, or refusal, of all runs stands.

        One step with its NOTIFICATION update. Errors: InvalidField for more than 64 KB as JSON;
        LeaseLost, JournalRewound.
        """
        await self._mailbox.reply(self._box, self.message, answered=True, value=value)

    async def refuse(self, reason: str) -> None:
        """Refuse: the sender gets RequestRefused with the reason. Otherwise like `reply`."""
        await self._mailbox.reply(self._box, self.message, answered=False, value=reason)


class RunMessaging:
    """What one run talks with, shared by the branches of its handler; made when it is needed."""

    def __init__(
        self, store: RedisStateStore, started: StartedRun, inbox: Inbox, queue: Queue | None
    ) -> None:
        self._run = (store, started, inbox)
        self._queue = queue
        # Entries of calls that were cancelled before they returned: the next call has them.
        self.returned: defaultdict[str, list[str]] = defaultdict(list)

    @cached_property
    def values(self) -> Values:
        """The values of tasks."""
        return Values(self._run[0])

    @cached_property
    def texts(self) -> Texts:
        """The texts of this run."""
        return Texts(*self._run)

    @cached_property
    def mailbox(self) -> Mailbox:
        """The mailbox of this run."""
        return Mailbox(*self._run)

    @cached_property
    def messages(self) -> TaskMessages:
        """The way to other tasks."""
        return TaskMessages(self._run[0], self._queue)


class ContextMessaging(ContextCalls):
    """The part of a handler's context that talks to the outside while the task runs."""

    _talk: RunMessaging

    async def publish_value(self, key: str, value: Any) -> None:
        """Publish a value under a key, for `TaskClient.value`; the last one of a key stands.

        One step with its NOTIFICATION update, so watchers see it. The n-th value of a key in one
        asyncio task of the handler is published once, whatever a replay makes of it. In the work of
        a step each attempt publishes its own. Values live as long as the task. A checkpoint.

        Errors: InvalidField for a key of more than 256 bytes, or a value of more than 64 KB as
        JSON; LimitReached beyond 100 keys; TaskCancelled, LeaseLost.
        """
        lane = self._steps.lane(["value", key], emits=True)
        await self.inbox.checkpoint()
        in_work = self._steps.in_work
        await self._talk.values.publish(self._started, lane, key, value, repeatable=in_work)

    def text(
        self,
        name: str = "text",
        *,
        kind: UpdateType = UpdateType.RESULT,
        join_ms: int = JOIN_MS,
        join_bytes: int = JOIN_BYTES,
    ) -> TextWriter:
        """Return the writer of a text that is published while a model writes it.

        ``async with ctx.text("answer") as out: out.write(token)`` joins tokens into updates: one
        for each ``join_bytes`` or ``join_ms``. Use it in the work of a `step`, or use
        `stream_step`: the model's answer is then recorded, and a replay calls no model. A text that
        is begun again is another generation, whose first update replaces the earlier ones. Outside
        of a step a replay passes a text that has ended. The name is counted by this call, as in
        `step`.

        Errors: InvalidField; those of `emit`, raised by a later write or at the end.
        """
        entry, in_work = self._steps.ask("text", name), self._steps.in_work
        return self._talk.texts.begin(entry, kind, join_ms, join_bytes, in_work=in_work)

    def stream_step(
        self,
        name: str,
        work: Callable[P, AsyncIterator[str] | Awaitable[AsyncIterator[str]]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> Coroutine[Any, Any, str]:
        """Run a step whose work yields tokens of a text; publish them, and return the whole text.

        The text is recorded, and a later run returns it without calling the work. A crash in the
        middle repeats the work, as a new generation of the text, and so does `retried` work that
        fails. See `text` and `step`.
        """

        async def write() -> str:
            return await write_all(self.text(name), work(*arguments, **options))

        again = retried(write, work.policy) if isinstance(work, Retried) else write
        return self._steps.do(name, again, (), {})

    def receive(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return the payload of the next signal of a name. See `receive_message`."""
        check_type(type)
        return self._payload(self._wanted("signal", name, timeout, hold_s), type)

    def receive_message(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float | None = None,
    ) -> Coroutine[Any, Any, TaskMessage]:
        """Take the next signal of a name, in the order in which they were sent; wait for one.

        A later run gets the same message at the same place. The n-th call with a name is the n-th
        in each run. The name is counted by this call, and belongs to the asyncio task that makes
        it, as in `step`. A checkpoint.

        After ``hold_s`` without a message the run ends, the task is PAUSED, and its worker is free.
        A message of any name that this run waits for starts the next run. While the work of a step
        runs beside the call, the run does not end. ``hold_s`` is 2 by default. In another
        asyncio task than the handler's own it is unlimited, because the end of the run would end
        the others too. ``timeout`` is `task_pause_ttl` by default, `active_task_ttl` at most, and
        counts from the first call on, over all runs. 0 takes what is there.

        Errors: ReceiveTimeout, which is recorded; InvalidMessage for a payload that is not of the
        ``type``: it is taken, and the next call gets the next message; InvalidField;
        TaskCancelled, LeaseLost.
        """
        check_type(type)
        return self._typed(self._wanted("signal", name, timeout, hold_s), type)

    def receive_request(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float | None = None,
    ) -> Coroutine[Any, Any, Request]:
        """Take the next request of a name, and reply to it. Otherwise like `receive_message`.

        A request whose payload is not of the ``type`` is refused, and the next one is taken. A run
        that dies before it replied gets the request again.
        """
        check_type(type)
        return self._request(self._wanted("request", name, timeout, hold_s), name, type)

    def send(
        self,
        session_id: str,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        type: Any = None,  # noqa: A002 - as above
    ) -> Coroutine[Any, Any, str]:
        """Send a signal to another task, of this session or another; return its id.

        A step: it is sent once per call of the handler, whatever its runs. A crash in between sends
        it again under the step's `effect_id`, and the receiver gets it once. Like `step` and
        `TaskClient.signal`.
        """
        to = Box(session_id, task_id, "signal", name)
        data = write_payload("payload", payload, type)
        step = f"send {check_name('name', name)}"
        return self._steps.do(step, self._talk.messages.send, (to, data), self._named(step))

    def request(
        self,
        session_id: str,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        type: Any = None,  # noqa: A002 - as above
    ) -> Coroutine[Any, Any, Any]:
        """Send a request to another task and return its reply. A step, like `send`.

        The worker keeps this task while it waits. The reply is recorded. ``type`` is that of the
        reply. Errors: those of `TaskClient.request`.
        """
        check_type(type)
        to = Box(session_id, task_id, "request", name)
        data = write_payload("payload", payload)
        step = f"request {check_name('name', name)}"
        options = {"timeout_s": timeout_s, **self._named(step)}
        asking = self._steps.do(step, self._talk.messages.request, (to, data), options)
        return self._replied(name, asking, type)

    def _named(self, step: str) -> dict[str, Any]:
        """Return the id and the sender of what a step sends: the same in each run of this task."""
        state, secret = self._started.state, self._started.secret
        message_id = codec.fingerprint("message", secret, self._steps.next_entry("step", step))
        return {"message_id": message_id, "sender": f"task:{state.session_id}/{state.task_id}"}

    def _wanted(
        self, kind: Kind, name: str, timeout: timedelta | None, hold_s: float | None
    ) -> Receiving:
        refuse_in_undo(kind)
        state = self._started.state
        box = Box(state.session_id, state.task_id, kind, name).key
        returned = self._talk.returned[_same(self._steps.next_entry(kind, name))]
        entry = returned.pop(0) if returned else self._steps.ask(kind, name)
        settings, lane, place = (
            self.store.settings,
            self._steps.lane(),
            self._steps.handler_place_of(entry),
        )
        return Receiving.read(
            settings, entry, box, lane=lane, place=place, timeout=timeout, hold_s=hold_s
        )

    async def _payload(self, wanted: Receiving, expected: Any) -> Any:
        return (await self._typed(wanted, expected)).payload

    async def _typed(self, wanted: Receiving, expected: Any) -> TaskMessage:
        found = await self._receive(wanted)
        return replace(found, payload=read_payload(found.name, found.payload, expected))

    async def _request(self, wanted: Receiving, name: str, expected: Any) -> Request:
        first, refused = wanted.entry, 0
        while True:
            message = await self._receive(wanted)
            request = Request(message, message.payload, wanted.box, self._talk.mailbox)
            try:
                return replace(request, payload=read_payload(name, message.payload, expected))
            except InvalidMessage as error:
                problems = "; ".join(error.problems)
            await request.refuse(f"invalid payload: {problems}")
            refused += 1
            entry = self._steps.ask_keyed(f"{first}!{refused}")
            wanted = replace(wanted, entry=entry, place=self._steps.handler_place_of(entry))

    async def _receive(self, wanted: Receiving) -> TaskMessage:
        steps, hold_s = self._steps, wanted.hold_s
        if hold_s is None:
            hold_s = HOLD_S if steps.in_own_task else inf
        try:
            await self.inbox.checkpoint()
            with self._ending_if_paused(), steps.open.waiting():
                message = await self._talk.mailbox.receive(
                    wanted,
                    hold_s=hold_s,
                    is_busy=lambda: not steps.open.are_quiet,
                    ending=self._end_by,
                )
                if message is None:
                    raise self._end_paused()
                await steps.open.passable()
        except CancelledError:
            self._talk.returned[_same(wanted.entry)].append(wanted.entry)
            raise
        return message

    async def _end_by(self, pause: Callable[[], Awaitable[bool]]) -> bool:
        """Pause the task; return whether it is paused. No step begins meanwhile."""
        with self._steps.open.ending():
            paused = await pause()
            if paused:
                self._end_paused()
        return paused

    async def _replied(self, name: str, asking: Coroutine[Any, Any, Any], expected: Any) -> Any:
        return read_payload(name, await asking, expected)


def _same(entry: str) -> str:
    """Return what entries of one name have in common, at one place of the handler."""
    return entry.rpartition("#")[0]
