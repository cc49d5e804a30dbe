"""What a client sends to a task that runs or waits, to steer it."""

from __future__ import annotations

from typing import Any

from redis_state import limits
from redis_state.errors import InvalidTransition, TaskUnknown
from redis_state.models import SteeringEvent, SteeringEventType, TaskStatus
from redis_state.models.steering import steering_event
from redis_state.models.tasks import new_id
from redis_state.primitives.listed import behind_a_write
from redis_state.transport.keys import is_pause_id, token_digest
from redis_state.worker.client.decisions import ClientDecisions
from redis_state.worker.queue.jobs.placing import place_by_record
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.children.cancelling import CancelCascade
from redis_state.worker.tasks.views.stream import missing_task

_DECISIONS = (SteeringEventType.APPROVE, SteeringEventType.REJECT)


class ClientSteering(ClientDecisions):
    """How a client steers tasks; a decision on a pause is one way."""

    _changes: TaskChanges
    _cancels: CancelCascade

    async def steer(
        self,
        session_id: str,
        task_id: str,
        event_type: SteeringEventType,
        payload: dict[str, Any] | None = None,
        *,
        source: str = "user",
        event_id: str | None = None,
    ) -> SteeringEvent:
        """Send a steering event to a task that runs or waits.

        The same ``event_id`` is the same event: name one if you may repeat the call.

        APPROVE and REJECT with a ``resume_token`` resolve that pause of this task, see `resolve`.
        The value is the payload's ``value``, else its ``decision``. The stored event names the
        token by its digest, and has no ``value``. CANCEL also cancels a waiting task, see `cancel`.
        PRIORITIZE moves a queued task; if the call fails before that, a sweeper moves it.

        Errors: SteeringValidationError if the payload breaks the rules of its type; InvalidField if
        there is no such type, or the payload is no object; KeyReused if the ``event_id`` is that of
        an event of the task with another type or payload; TaskUnknown; CorruptState if its record
        is damaged; InvalidTransition if the task is terminal, unless it received this event before;
        OutcomeUnknown, also if the event is sent, and what it means for a task that waits is not
        done yet; those of `resolve`.
        """
        event = steering_event(
            session_id=session_id,
            task_id=task_id,
            event_type=event_type,
            payload=payload or {},
            source=source,
            event_id=limits.own_id("event_id", event_id) or new_id(),
        )
        token = event.payload.get("resume_token")
        if event_type in _DECISIONS and token:
            # A value that does not fit leaves no event; `resolve` reports the first caller.
            await self._resolve(
                token,
                event_type is SteeringEventType.APPROVE,
                event.payload.get("value", event.payload.get("decision")),
                actor=source,
                idempotency_key=event.event_id,
                session_id=session_id,
                task_id=task_id,
                before=lambda: self.store.save_steering(_naming_token(event)),
            )
            return event
        await self._check_steerable(event, repeated=event_id is not None)
        event_as_kept = event if token is None else _naming_token(event)
        if event_id is None:
            await self.store.save_steering(event_as_kept)
        else:
            await self.store.steering.save_own(event_as_kept)
        with behind_a_write(self.store.transport.address):
            if event_type is SteeringEventType.CANCEL:
                reason, hard = event.payload.get("reason"), event.payload.get("hard") is True
                await self._cancels.cancel_waiting(session_id, task_id, reason, hard=hard)
            elif event_type is SteeringEventType.PRIORITIZE:
                await self._prioritize(session_id, task_id, event.payload["priority"])
        return event

    async def cancel(
        self,
        session_id: str,
        task_id: str,
        *,
        reason: str | None = None,
        hard: bool = False,
        idempotency_key: str | None = None,
    ) -> bool:
        """Cancel a task: at once if it waits, at its next checkpoint if it runs.

        ``hard`` cancels the running coroutine itself. The children of a cancelled task are
        cancelled after it, unless they are isolated. Return False if the task is terminal or
        unknown. A call that is repeated with the same ``idempotency_key`` cancels once,
        and returns what the first has achieved. Errors: KeyReused if that had another reason, or
        was ``hard`` and this is not, or the other way round; OutcomeUnknown, also if the task has
        received it, and what follows is not known: repeat it under its ``idempotency_key``;
        CorruptState if its record is damaged.
        """
        limits.own_id("idempotency_key", idempotency_key)
        payload: dict[str, Any] = {"hard": hard} | ({"reason": reason} if reason else {})
        state = await self.get(session_id, task_id)
        if state is None:
            await missing_task(self.store, session_id, task_id)
            return False
        if state.status.is_terminal and idempotency_key is None:
            return False
        try:
            await self.steer(
                session_id, task_id, SteeringEventType.CANCEL, payload, event_id=idempotency_key
            )
        except (TaskUnknown, InvalidTransition):
            return False  # it ended meanwhile
        with behind_a_write(self.store.transport.address):
            state = await self.get(session_id, task_id)
        return state is not None and state.status not in (TaskStatus.COMPLETE, TaskStatus.FAILED)

    async def _check_steerable(self, event: SteeringEvent, *, repeated: bool) -> None:
        """Refuse an event that no run would receive. A repeated call is accepted after the task's
        end.
        """
        state = await self.get(event.session_id, event.task_id)
        if state is None:
            raise await missing_task(self.store, event.session_id, event.task_id)
        if not state.status.is_terminal:
            return
        if not (repeated and await self.store.steering_cursor(event.session_id, event.event_id)):
            raise InvalidTransition(event.task_id, current=state.status.value, wanted="steered")

    async def _prioritize(self, session_id: str, task_id: str, priority: int) -> None:
        """Change the priority of a waiting task. A running task receives an event."""
        waiting = await self._changes.prioritize(session_id, task_id, priority)
        if waiting is not None:
            await place_by_record(self.store, self._queue, waiting)


def _naming_token(event: SteeringEvent) -> SteeringEvent:
    """Return a decision as it is stored: without its value, and without what decides."""
    token = event.payload["resume_token"]
    digest = token.rpartition(":")[2] if is_pause_id(token) else token_digest(token)
    payload = {**event.payload, "resume_token": digest}
    payload.pop("value", None)
    return event.model_copy(update={"payload": payload})
