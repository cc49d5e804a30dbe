"""What a client gathers into one task over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict, Unpack

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.http_client.requests.caller import Ask, GatewayCaller, key_of
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.worker.client.operations import check_id


class HttpGatherOptions(TypedDict, total=False):
    """What the first item gives a task whose input is gathered. See `HttpTaskClient.submit`."""

    queue: str | None
    priority: int
    limit_key: str | None
    in_turn: bool
    description: str | None
    attributes: Attributes


class HttpGathering:
    """The part of the client that gathers inputs into one task."""

    _caller: GatewayCaller

    async def debounce(
        self,
        handler: str,
        task_input: Any = None,
        *,
        session_id: str,
        wait: timedelta,
        group: str = "",
        at_most: timedelta | None = None,
        **options: Unpack[HttpGatherOptions],
    ) -> str:
        """Submit a task that begins once no input has come for ``wait``; return the task's id.

        See `TaskClient.debounce`. It is sent once: a repetition could put an older input in place
        of a newer one. Errors: OutcomeUnknown if it may have happened.
        """
        body = _body(handler, session_id, group, options)
        body |= {"input": task_input, "wait_s": _seconds("wait", wait)}
        body |= {} if at_most is None else {"at_most_s": _seconds("at_most", at_most)}
        ask = Ask("POST", ("tasks", "debounce"), body=body, repeatable=False)
        return str((await self._caller.call(ask))["task_id"])

    async def batch(
        self,
        handler: str,
        item: Any,
        *,
        session_id: str,
        after: timedelta,
        most: int = 100,
        group: str = "",
        item_id: str | None = None,
        **options: Unpack[HttpGatherOptions],
    ) -> str:
        """Add an item to a batch; return the id of the task that gets it.

        See `TaskClient.batch`. The same ``item_id`` of the same caller is the same item. Without
        one an id is made before it is sent: a call that is repeated adds one item.
        """
        body = _body(handler, session_id, group, options)
        body |= {"item": item, "after_s": _seconds("after", after)}
        body |= {"most": limits.count("most", most)}
        key = key_of("item_id", item_id)
        ask = Ask("POST", ("tasks", "batch"), body=body, key=key)
        return str((await self._caller.call(ask))["task_id"])


def _body(handler: str, session_id: str, group: str, options: HttpGatherOptions) -> dict[str, Any]:
    limits.known_options(HttpGatherOptions, options)
    limits.name("handler", handler)
    check_id("session_id", session_id)
    attributes = check_attributes("attributes", options.get("attributes", {}))
    given = {name: value for name, value in options.items() if value is not None}
    body = {"handler": handler, "session_id": session_id, "group": group}
    return body | given | {"attributes": attributes}


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, timedelta):
        raise InvalidField(name, "needs a timedelta")
    return value.total_seconds()
