"""The messages and the values of running tasks over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any

from redis_state import limits
from redis_state.errors import (
    RequestRefused,
    RequestUnanswered,
    TaskUnknown,
)
from redis_state.http_client.documents import read_value
from redis_state.http_client.requests.caller import Ask, GatewayCaller, key_of
from redis_state.http_client.requests.server_events import ServerEvent
from redis_state.http_client.requests.streams import UpdateStreams
from redis_state.http_client.tasks.paths import task_path
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.timeouts import timeout
from redis_state.worker import PublishedValue
from redis_state.worker.tasks.messaging.messages import REQUEST_TIMEOUT_S, late_reply
from redis_state.worker.tasks.messaging.payloads import (
    check_name,
    check_type,
    read_payload,
    write_payload,
)


class HttpMessaging:
    """The part of the client that talks to running tasks."""

    _caller: GatewayCaller
    _streams: UpdateStreams

    async def signal(
        self,
        session_id: str,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        type: Any = None,  # noqa: A002 - the word for it
        idempotency_key: str | None = None,
    ) -> str:
        """Send a signal to a task that runs or waits; return its id. See `TaskClient.signal`.

        The same ``idempotency_key`` of the same caller is the same signal. The gateway gives it
        another id, which is returned, and the caller as its sender.
        """
        data = write_payload("payload", payload, type)
        given = idempotency_key
        ask = Ask(
            "POST",
            task_path(session_id, task_id, "signal"),
            body={"name": check_name("name", name), "payload": codec.decode(data)},
            key=key_of("idempotency_key", given),
            missing=lambda: TaskUnknown(task_id),
        )
        return str((await self._caller.call(ask))["message_id"])

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
    ) -> Any:
        """Send a request to a task, and return the handler's reply. See `TaskClient.request`.

        The same ``idempotency_key`` of the same caller is the same request. The call is repeated
        under it until the reply is there: a lost connection, or another gateway, changes nothing.
        """
        check_type(type)
        limits.patience("timeout_s", timeout_s)
        data = codec.decode(write_payload("payload", payload))
        key = key_of("idempotency_key", idempotency_key)
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        while True:
            wait_s = min(max(until - clock(), 0.0), self._caller.longest_wait_s)
            ask = Ask(
                "POST",
                task_path(session_id, task_id, "request"),
                body={"name": check_name("name", name), "payload": data, "wait_s": wait_s},
                key=key,
                missing=lambda: TaskUnknown(task_id),
            )
            try:
                found = await self._caller.call(ask)
            except RequestRefused as error:
                reason = error.reason
                raise RequestRefused(task_id, name, reason, request_id=key) from None
            except RequestUnanswered as error:
                status = error.status
                raise RequestUnanswered(task_id, name, status, request_id=key) from None
            if found["answered"]:
                return read_payload(name, found["reply"], type)
            if clock() >= until:
                raise late_reply(task_id, name, key, received=bool(found["received"]))

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

        See `TaskClient.value`.
        """
        check_type(type)
        path = task_path(session_id, task_id, "values", check_name("key", key))
        ask = Ask("GET", path, missing=None)
        found = await self._caller.call(ask)
        if found is None and wait is not None:
            wait_s = limits.patience("wait", wait)
            found = await self._awaited(ask, session_id, task_id, key, wait_s)
        if found is None:
            return default
        return read_payload(key, found["value"], type)

    async def values(self, session_id: str, task_id: str) -> list[PublishedValue]:
        """List the values that a task has published, by key."""
        ask = Ask("GET", task_path(session_id, task_id, "values"), missing=None)
        found = await self._caller.call(ask)
        return [] if found is None else [read_value(each) for each in found["values"]]

    async def _awaited(
        self, ask: Ask, session_id: str, task_id: str, key: str, wait_s: float
    ) -> Any:
        """Return the answer once its update comes; None at the end of the task, or of the time."""
        # From the begin: what was published since the value was asked for is among them.
        events = self._streams.events(
            session_id,
            task_id=task_id,
            after=None,
            types=(UpdateType.NOTIFICATION,),
            reconnect_timeout_s=wait_s,
        )
        with suppress(TimeoutError):
            async with timeout(wait_s), aclosing(events):
                async for event in events:
                    if _may_announce(event, key):
                        found = await self._caller.call(ask)
                        if found is not None:
                            return found
        return None


def _may_announce(event: ServerEvent, key: str) -> bool:
    if event.name != UpdateType.NOTIFICATION.value:
        return True
    match codec.decode(event.data):
        case {"content": {"notice": "value", "key": name}}:
            return bool(name == key)
        case _:
            return False
