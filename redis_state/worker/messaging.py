"""Talk to a running task: what a client and a handler can do with messages, values and texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ParamSpec

from redis_state.errors import InvalidMessage
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.inbox import Inbox
from redis_state.worker.tasks.mailbox import HOLD_S, Mailbox, Receiving, TaskMessage
from redis_state.worker.tasks.messages import Box, Kind, TaskMessages
from redis_state.worker.tasks.payloads import check_name, check_type, read_payload, write_payload
from redis_state.worker.tasks.steps import Steps
from redis_state.worker.tasks.text import JOIN_BYTES, JOIN_MS, Texts, TextWriter, write_all
from redis_state.worker.tasks.transitions import StartedRun
from redis_state.worker.tasks.values import PublishedValue, Values

P = ParamSpec("P")

REQUEST_TIMEOUT_S = 30.0


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


class ClientMessaging:
    """The part of a client that talks to running tasks."""

    _values: Values
    _messages: TaskMessages

    async def signal(
        self,
        session_id: str,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        idempotency_key: str | None = None,
        sender: str | None = None,
    ) -> str:
        """Send a signal to a task that runs or waits; return its id.

        The handler takes it with `TaskContext.receive`, once, in order with the others of its name.
        It waits in the task's mailbox until then. A task that is PAUSED to wait for it is made
        PENDING in the same step, and queued.

        The same ``idempotency_key`` is the same signal: name one if you may repeat the call. With
        ``type``, any type that pydantic can validate, the payload is checked before it is sent.

        Errors: InvalidField for a payload that is not of the type, or of more than 64 KB as JSON;
        TaskUnknown; InvalidTransition if the task is terminal, unless it has this signal;
        LimitReached beyond 1,000 waiting messages or 4 MB.
        """
        to = Box(session_id, task_id, "signal", name)
        data = write_payload("payload", payload, type)
        return await self._messages.send(to, data, message_id=idempotency_key, sender=sender)

    async def request(
        self,
        session_id: str,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        type: Any = None,  # noqa: A002 - the word for it
        idempotency_key: str | None = None,
        sender: str | None = None,
    ) -> Any:
        """Send a request to a task that runs or waits, and return the handler's reply.

        The handler takes it with `TaskContext.receive_request`. The reply is stored with the task:
        the same ``idempotency_key`` gets the same reply, also after the caller's death or the
        worker's, as long as the task is kept. ``type`` is that of the reply.

        Errors: RequestTimeout, and NoReceiver if the handler has not called for requests of the
        name; RequestRefused; RequestUnanswered if the task ends, or has ended, without a reply;
        InvalidMessage for a reply that is not of the type; those of `signal`.
        """
        check_type(type)
        return await self._messages.request(
            Box(session_id, task_id, "request", name),
            write_payload("payload", payload),
            timeout_s=timeout_s,
            message_id=idempotency_key,
            sender=sender,
            expected=type,
        )

    async def value(
        self,
        session_id: str,
        task_id: str,
        key: str,
        *,
        wait: float | None = None,
        type: Any = None,  # noqa: A002 - the word for it
        default: Any = None,
    ) -> Any:
        """Return the value that a task has published under a key, else ``default``.

        ``wait`` waits up to so many seconds for the first one, but not beyond the task's end.
        ``type`` is any type that pydantic can validate. Values live as long as the task.

        Errors: InvalidMessage if it is not of the type; InvalidField; TaskUnknown, only if it is
        waited for.
        """
        check_type(type)
        return await self._values.value(
            session_id, task_id, key, wait=wait, expected=type, default=default
        )

    async def values(self, session_id: str, task_id: str) -> list[PublishedValue]:
        """List the values that a task has published, by key. Errors: CorruptState."""
        return await self._values.list(session_id, task_id)


class ContextMessaging(ABC):
    """The part of a handler's context that talks to the outside while the task runs."""

    store: RedisStateStore
    inbox: Inbox
    _started: StartedRun
    _steps: Steps
    _values: Values
    _texts: Texts
    _mailbox: Mailbox
    _messages: TaskMessages

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
        await self._values.publish(self._started, lane, key, value, repeatable=in_work)

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
        return self._texts.begin(entry, kind, join_ms, join_bytes, in_work=in_work)

    def stream_step(
        self,
        name: str,
        work: Callable[P, AsyncIterator[str] | Awaitable[AsyncIterator[str]]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> Coroutine[Any, Any, str]:
        """Run a step whose work yields tokens of a text; publish them, and return the whole text.

        The text is recorded, and a later run returns it without calling the work. A crash in the
        middle repeats the work, as a new generation of the text. See `text` and `step`.
        """

        async def write() -> str:
            return await write_all(self.text(name), work(*arguments, **options))

        return self._steps.do(name, write, (), {})

    async def receive(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float = HOLD_S,
    ) -> Any:
        """Return the payload of the next signal of a name. See `receive_message`."""
        message = await self.receive_message(name, type=type, timeout=timeout, hold_s=hold_s)
        return message.payload

    def receive_message(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float = HOLD_S,
    ) -> Coroutine[Any, Any, TaskMessage]:
        """Take the next signal of a name, in the order in which they were sent; wait for one.

        A later run gets the same message at the same place. The n-th call with a name is the n-th
        in each run. The name is counted by this call, and belongs to the asyncio task that makes
        it, as in `step`. A checkpoint.

        After ``hold_s`` without a message the run ends, the task is PAUSED, and its worker is free.
        A message of any name that this run waits for starts the next run. ``timeout`` is
        `task_pause_ttl` by default, `active_task_ttl` at most, and counts from the first call on,
        over all runs. 0 takes what is there.

        Errors: ReceiveTimeout, which is recorded; InvalidMessage for a payload that is not of the
        ``type``: it is taken, and the next call gets the next message; InvalidField;
        TaskCancelled, LeaseLost.
        """
        wanted = self._wanted("signal", name, type, timeout, hold_s)
        return self._typed(wanted, type)

    async def receive_request(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        timeout: timedelta | None = None,
        hold_s: float = HOLD_S,
    ) -> Request:
        """Take the next request of a name, and reply to it. Otherwise like `receive_message`.

        A request whose payload is not of the ``type`` is refused, and the next one is taken. A run
        that dies before it replied gets the request again.
        """
        while True:
            wanted = self._wanted("request", name, type, timeout, hold_s)
            message = await self._receive(wanted)
            try:
                payload = read_payload(name, message.payload, type)
            except InvalidMessage as error:
                reason = f"invalid payload: {'; '.join(error.problems)}"
                await Request(message, None, wanted.box, self._mailbox).refuse(reason)
            else:
                return Request(message, payload, wanted.box, self._mailbox)

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
        return self._steps.do(step, self._messages.send, (to, data), self._named(step))

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
        asking = self._steps.do(step, self._messages.request, (to, data), options)
        return self._replied(name, asking, type)

    def _named(self, step: str) -> dict[str, Any]:
        """Return the id and the sender of what a step sends: the same in each run of this task."""
        state, secret = self._started.state, self._started.secret
        message_id = codec.fingerprint("message", secret, self._steps.next_entry(step))
        return {"message_id": message_id, "sender": f"task:{state.session_id}/{state.task_id}"}

    def _wanted(
        self, kind: Kind, name: str, expected: Any, timeout: timedelta | None, hold_s: float
    ) -> Receiving:
        state = self._started.state
        box = Box(state.session_id, state.task_id, kind, name).box
        entry = self._steps.ask(kind, name)
        return Receiving.read(
            self.store.settings, entry, box, timeout=timeout, hold_s=hold_s, expected=expected
        )

    async def _typed(self, wanted: Receiving, expected: Any) -> TaskMessage:
        found = await self._receive(wanted)
        payload = read_payload(found.name, found.payload, expected)
        return TaskMessage(found.name, found.message_id, found.sender, found.at_ms, payload)

    async def _receive(self, wanted: Receiving) -> TaskMessage:
        await self.inbox.checkpoint()
        with self._ending_if_paused():
            message = await self._mailbox.receive(wanted, self._steps.lane())
        if message is None:
            raise self._end_paused()
        return message

    async def _replied(self, name: str, asking: Coroutine[Any, Any, Any], expected: Any) -> Any:
        return read_payload(name, await asking, expected)

    @abstractmethod
    def _ending_if_paused(self) -> AbstractContextManager[None]:
        """Treat a pause by another coroutine of this run as the end of the run."""

    @abstractmethod
    def _end_paused(self) -> BaseException:
        """End this run, because the task is paused."""
