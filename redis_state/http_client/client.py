"""The client of a gateway: submit, steer, decide, cancel, wait, from where no Redis is reached."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from redis_state import limits
from redis_state.errors import InvalidField, TaskUnknown
from redis_state.http_client.collections import HttpQueues, HttpRates, HttpSchedules
from redis_state.http_client.requests.caller import Ask, Credentials, GatewayCaller
from redis_state.http_client.requests.streams import UpdateStreams
from redis_state.http_client.tasks.decisions import HttpDecisions
from redis_state.http_client.tasks.erasing import HttpErasing
from redis_state.http_client.tasks.gathering import HttpGathering
from redis_state.http_client.tasks.messaging import HttpMessaging
from redis_state.http_client.tasks.operations import HttpOperations
from redis_state.models import StateUpdate, TaskState, UpdateType
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.models.tasks import new_id
from redis_state.serialization.sealed import need_end
from redis_state.stores.sessions.session_log import Entry
from redis_state.timeouts import timeout
from redis_state.worker import OnBusy
from redis_state.worker.client.operations import check_id
from redis_state.worker.tasks.children.children import recorded_end, result_of
from redis_state.worker.tasks.submitting.submissions import SubmitOptions, Submitted

if TYPE_CHECKING:
    import httpx

_PATIENCE_S = 300.0
# What a host beside the server gives: a context may be large and secret.
_OF_HOSTS: Final = frozenset({"task_type", "context", "sent"})


class HttpTaskClient(HttpOperations, HttpDecisions, HttpGathering, HttpMessaging, HttpErasing):
    """`TaskClient` over HTTP: the same methods, models and errors, for what a gateway offers.

    ``base_url`` is where the gateway is mounted. ``token`` is a key or a token of the caller, or a
    function that returns the one to be used now: it is called for each request, and again after a
    401. ``timeout_s`` is the time for one call with its repetitions. ``tls`` has the certificates
    that are trusted, those of a private CA for example. ``transport`` is one of httpx: a proxy, or
    an application in this process.

    A call is repeated within its time, if its connection breaks or the gateway cannot answer now,
    and if a repetition changes nothing more. That is so for all that reads, and for what has an id:
    one is made where none is given. Use one client in one event loop, for any number of calls.

    Errors: those of `TaskClient`. BackendUnavailable, OutcomeUnknown and AuthenticationFailed are
    about the gateway; CommandRefused if the caller lacks a right. ConfigError for a wrong address.
    """

    def __init__(
        self,
        base_url: str,
        token: Credentials = None,
        *,
        timeout_s: float = 30.0,
        idle_s: float = 45.0,
        tls: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._caller = GatewayCaller(
            base_url, token, timeout_s=timeout_s, idle_s=idle_s, tls=tls, transport=transport
        )
        self._streams = UpdateStreams(self._caller)
        self.schedules: HttpSchedules = HttpSchedules(self._caller)

    def __repr__(self) -> str:
        """Return the address of the gateway, and nothing of the credentials."""
        return f"{type(self).__name__}({self._caller.address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._caller.aclose()

    async def submit(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        task_id: str | None = None,
        priority: int = 0,
        description: str | None = None,
        trace_id: str | None = None,
        queue: str | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        limit_key: str | None = None,
        in_turn: bool = False,
        on_busy: OnBusy | Literal["enqueue", "reject", "interrupt", "replace"] | None = None,
        attributes: Attributes | None = None,
    ) -> str:
        """Submit a task for a handler; return the task's id. See `TaskClient.submit`.

        The same ``task_id`` is the same task. Without one an id is made before it is sent: a call
        that is repeated submits once.
        """
        submitted = await self.submit_or_find(
            handler,
            task_input,
            session_id=session_id,
            task_id=task_id,
            priority=priority,
            description=description,
            trace_id=trace_id,
            queue=queue,
            delay=delay,
            at=at,
            limit_key=limit_key,
            in_turn=in_turn,
            on_busy=on_busy,
            attributes=attributes,
        )
        return submitted.task_id

    async def submit_or_find(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        task_id: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Submit a task like `submit`; return also whether this call has written it.

        See `TaskClient.submit_or_find`. If its connection breaks, it may find under its ``task_id``
        what it has written itself. It has neither ``task_type`` nor ``context`` nor ``sent``.
        """
        limits.known_options(SubmitOptions, options)
        for name in _OF_HOSTS & options.keys():
            raise InvalidField(name, "cannot be given over HTTP")
        limits.name("handler", handler)
        check_id("session_id", session_id)
        named = limits.own_id("task_id", task_id) or new_id()
        check_id("task_id", named)
        policy = OnBusy.read(options.get("on_busy"))
        said: dict[str, Any] = {
            **options,
            "delay_s": _delay_s(options.get("delay")),
            "at": _moment(options.get("at")),
            "on_busy": None if policy is None else policy.value,
            "attributes": _attributes(options.get("attributes")),
        }
        said.pop("delay", None)
        body = {name: value for name, value in said.items() if value is not None}
        body |= {"handler": handler, "session_id": session_id, "task_id": named}
        ask = Ask("POST", ("tasks",), body=body | {"input": task_input})
        made = await self._caller.call(ask)
        # Nobody else has an id that was made here.
        return Submitted(named, is_new=bool(made["created"]) or task_id is None)

    @property
    def queues(self) -> HttpQueues:
        """The queues: what waits and runs in them; pause, resume and limit."""
        return HttpQueues(self._caller)

    @property
    def rates(self) -> HttpRates:
        """The rates that were set in place of those that handlers give to `TaskContext.take`."""
        return HttpRates(self._caller)

    async def wait(
        self, session_id: str, task_id: str, *, timeout_s: float | None = None
    ) -> TaskState:
        """Wait until a task is terminal and return it. It needs ``read``.

        Errors: TimeoutError; TaskUnknown if the session has no such task; BackendUnavailable after
        five minutes without the gateway.
        """
        async with timeout(limits.timeout("timeout_s", timeout_s)):
            while True:
                # The stream ends at once if the task has ended, also if it did so before.
                events = self._streams.events(
                    session_id,
                    task_id=task_id,
                    after="$",
                    types=(UpdateType.STATUS_CHANGE,),
                    reconnect_timeout_s=_PATIENCE_S,
                )
                async with aclosing(events):
                    async for _ in events:
                        pass
                state = await self.get(session_id, task_id)
                if state is None:
                    raise TaskUnknown(task_id)
                if state.status.is_terminal:
                    return state

    async def result(self, session_id: str, task_id: str, *, timeout_s: float | None = None) -> Any:
        """Wait until a task is terminal and return its result.

        Errors: TaskFailed and TaskWasCancelled, with the reason; PayloadUnreadable for one that the
        gateway lacks the key or the store of; those of `wait`.
        """
        state = await self.wait(session_id, task_id, timeout_s=timeout_s)
        need_end(state, reader="the gateway")
        return result_of(session_id, task_id, recorded_end(state))

    def watch(
        self,
        session_id: str,
        task_id: str,
        *,
        after: str | None = None,
        reconnect_timeout_s: float = _PATIENCE_S,
    ) -> AsyncGenerator[Entry[StateUpdate], None]:
        """Yield every update of a task once, in order, live, until it is terminal; then end.

        See `TaskClient.watch`. Lost connections and a restarted gateway are survived. ``after`` is
        a cursor, or ``$`` for what comes from now on.

        Errors: TaskUnknown if the session has no such task, or no longer; CursorGap instead of a
        silent skip; BackendUnavailable after ``reconnect_timeout_s`` without the gateway.
        """
        return self.watch_updates(
            session_id, task_id=task_id, after=after, reconnect_timeout_s=reconnect_timeout_s
        )

    def watch_updates(
        self,
        session_id: str,
        *,
        after: str | None = None,
        task_id: str | None = None,
        types: Collection[UpdateType | str] | None = None,
        reconnect_timeout_s: float = _PATIENCE_S,
    ) -> AsyncGenerator[Entry[StateUpdate], None]:
        """Yield every update of a session once, in order, and then those to come.

        ``types`` are the types of updates that are wanted. With a ``task_id`` it is `watch`.
        Errors: those of `watch`.
        """
        check_id("session_id", session_id)
        return self._streams.updates(
            session_id,
            task_id=task_id,
            after=after,
            types=types,
            reconnect_timeout_s=reconnect_timeout_s,
        )


def _delay_s(delay: timedelta | None) -> float | None:
    given: Any = delay
    if given is not None and not isinstance(given, timedelta):
        raise InvalidField("delay", "needs a timedelta")
    return None if delay is None else delay.total_seconds()


def _moment(at: datetime | None) -> str | None:
    if at is not None and getattr(at, "tzinfo", None) is None:
        raise InvalidField("at", "needs a datetime with a time zone")
    return None if at is None else at.isoformat()


def _attributes(attributes: Attributes | None) -> dict[str, Any] | None:
    return None if attributes is None else check_attributes("attributes", attributes)
