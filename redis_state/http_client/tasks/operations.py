"""What the client does with tasks that are there already, in the name of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from redis_state import limits
from redis_state.errors import InvalidField, InvalidTransition, OutcomeUnknown, TaskUnknown
from redis_state.http_client.documents import read_report
from redis_state.http_client.requests.caller import LONGEST_KEY, Ask, key_of
from redis_state.http_client.tasks.paths import moment_text, task_path
from redis_state.http_client.tasks.reading import HttpReading
from redis_state.models import SteeringEvent, SteeringEventType, TaskState
from redis_state.models.attributes import Attributes
from redis_state.models.steering import steering_event
from redis_state.models.tasks import new_id
from redis_state.primitives.listed import behind_a_write
from redis_state.worker import BulkAction, BulkReport, TaskFilters
from redis_state.worker.tasks.views.task_filter import TaskFilter

MOST_IN_BULK = 500


class HttpOperations(HttpReading):
    """The part of the client that changes tasks."""

    async def steer(
        self,
        session_id: str,
        task_id: str,
        event_type: SteeringEventType,
        payload: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
    ) -> SteeringEvent:
        """Send a steering event to a task that runs or waits. See `TaskClient.steer`.

        The same ``event_id`` of the same caller is the same event. The gateway gives it another id,
        which the returned event has, and the caller as its source. A pause is decided with
        `resolve`: APPROVE and REJECT are refused.
        """
        key = key_of("event_id", event_id or None)
        event = steering_event(
            session_id=session_id,
            task_id=task_id,
            event_type=event_type,
            payload=payload or {},
            source="",
            event_id=key,
        )
        body = {"type": event.event_type.value, "payload": event.payload}
        sent = await self._change(session_id, task_id, "steer", body, key)
        return event.model_copy(update={"event_id": sent["event_id"], "source": sent["source"]})

    async def cancel(
        self,
        session_id: str,
        task_id: str,
        *,
        reason: str | None = None,
        hard: bool = False,
        idempotency_key: str | None = None,
    ) -> bool:
        """Cancel a task. See `TaskClient.cancel`."""
        body: dict[str, Any] = {"hard": hard} | ({"reason": reason} if reason else {})
        try:
            key = limits.own_id("idempotency_key", idempotency_key) or new_id()
            await self._change(session_id, task_id, "cancel", body, key)
        except (TaskUnknown, InvalidTransition):
            return False
        return True

    async def retry(
        self, session_id: str, task_id: str, *, idempotency_key: str | None = None
    ) -> TaskState:
        """Reopen a task that is FAILED or CANCELLED. See `TaskClient.retry`.

        It needs ``read`` beside ``steer``. Without it TaskUnknown is raised, and nothing is done.
        """
        key = key_of("idempotency_key", idempotency_key)
        if len(key) > LONGEST_KEY:
            raise InvalidField("idempotency_key", f"text of 1 to {LONGEST_KEY} signs is needed")
        # Read first: behind the change, a task that cannot be read would deny it.
        if await self.get(session_id, task_id) is None:
            raise TaskUnknown(task_id)
        await self._change(session_id, task_id, "retry", {}, key)
        with behind_a_write(self._caller.address):
            state = await self.get(session_id, task_id)
        if state is None:
            raise OutcomeUnknown(self._caller.address, "reopened, then: it cannot be read any more")
        return state

    async def rerun(
        self,
        session_id: str,
        task_id: str,
        *,
        new_task_id: str | None = None,
        new_session_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
    ) -> str:
        """Submit a new task with the input and the handler of another. See `TaskClient.rerun`."""
        body = _given(
            new_task_id=limits.own_id("new_task_id", new_task_id) or new_id(),
            new_session_id=new_session_id,
            attributes=None if attributes is None else dict(attributes),
            queue=queue,
        )
        made = await self._change(session_id, task_id, "rerun", body)
        return str(made["task_id"])

    async def fork(
        self,
        session_id: str,
        task_id: str,
        *,
        before: str | None = None,
        new_task_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
    ) -> str:
        """Submit a new task that begins with another one's journal. See `TaskClient.fork`."""
        body = _given(
            before=before,
            new_task_id=limits.own_id("new_task_id", new_task_id) or new_id(),
            attributes=None if attributes is None else dict(attributes),
            queue=queue,
        )
        made = await self._change(session_id, task_id, "fork", body)
        return str(made["task_id"])

    async def bulk(
        self,
        action: BulkAction | str,
        *,
        dry_run: bool = False,
        limit: int = MOST_IN_BULK,
        idempotency_key: str | None = None,
        before: str | None = None,
        reason: str | None = None,
        **filters: Unpack[TaskFilters],
    ) -> BulkReport:
        """Retry, rerun, fork or cancel all tasks that match, the oldest first: 500 at most.

        See `TaskClient.bulk`. Without an ``idempotency_key`` it is sent once. With one it is
        repeated if the connection breaks; then the report may lack what the first attempt has
        changed.
        """
        try:
            action = BulkAction(action)
        except ValueError:
            raise InvalidField("action", f"one of {', '.join(BulkAction)} is needed") from None
        wanted = TaskFilter.read(**filters)
        chosen: dict[str, Any] = _given(
            handler=wanted.handler,
            session_id=wanted.session_id,
            attributes=dict(wanted.attributes) or None,
            created_after=moment_text(wanted.created_after),
            created_before=moment_text(wanted.created_before),
            ended_after=moment_text(wanted.ended_after),
            ended_before=moment_text(wanted.ended_before),
        )
        if filters.get("status") is not None:
            chosen["status"] = [status.value for status in wanted.statuses]
        options = {"dry_run": dry_run, "limit": limits.count("limit", limit)}
        body = {"action": action.value, "filter": chosen, **options}
        body |= _given(before=before, reason=reason)
        repeatable = dry_run or idempotency_key is not None
        ask = Ask("POST", ("bulk",), body=body, key=idempotency_key, repeatable=repeatable)
        return read_report(await self._caller.call(ask))

    async def _change(
        self,
        session_id: str,
        task_id: str,
        name: str,
        body: Mapping[str, Any],
        key: str | None = None,
    ) -> Any:
        """Change a task, under a key or an id of what is made: it may be repeated."""
        return await self._caller.call(
            Ask(
                "POST",
                task_path(session_id, task_id, name),
                body=body,
                key=key,
                missing=lambda: TaskUnknown(task_id),
            )
        )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
