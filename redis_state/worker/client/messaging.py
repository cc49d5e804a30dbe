"""The messages and values of running tasks, for clients."""

from __future__ import annotations

from typing import Any

from redis_state.worker.tasks.messaging.messages import REQUEST_TIMEOUT_S, Box, TaskMessages
from redis_state.worker.tasks.messaging.payloads import check_type, write_payload
from redis_state.worker.tasks.messaging.values import PublishedValue, Values


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

        Errors: KeyReused if another payload was sent under the key; InvalidField for a payload that
        is not of the type, or of more than 64 KB as JSON; TaskUnknown; InvalidTransition if the
        task is terminal, unless it has this signal; LimitReached beyond 1,000 waiting messages or
        4 MB.
        """
        to = Box(session_id, task_id, "signal", name)
        data = write_payload("payload", payload, type)
        return await self._messages.send(
            to, data, message_id=idempotency_key, sender=sender, compares=True
        )

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
            compares=True,
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
