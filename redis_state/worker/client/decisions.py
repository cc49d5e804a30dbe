"""The decisions on pauses, and the lists of those that are open, for clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from redis_state import limits
from redis_state.models import TaskState, TaskStatus
from redis_state.primitives.listed import behind_a_write
from redis_state.store import RedisStateStore, process_name
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.waitpoints.deciders import delegate_vote
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions
from redis_state.worker.tasks.waitpoints.open_pauses import (
    OpenPause,
    list_open_pauses,
    read_open_pause,
    wanted_pauses,
)
from redis_state.worker.tasks.waitpoints.pause_pages import PausePage, list_pause_page


class ClientDecisions(ABC):
    """What a client does with the pauses of tasks."""

    store: RedisStateStore
    _queue: Queue
    _decisions: PauseDecisions
    _books: TaskBookkeeping

    @abstractmethod
    async def get(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task, or None."""

    async def approve(
        self,
        token: str,
        value: Any = None,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Approve a pause. See `resolve`."""
        return await self.resolve(
            token,
            approved=True,
            value=value,
            session_id=session_id,
            task_id=task_id,
            actor=actor,
            idempotency_key=idempotency_key,
        )

    async def reject(
        self,
        token: str,
        value: Any = None,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Reject a pause. See `resolve`."""
        return await self.resolve(
            token,
            approved=False,
            value=value,
            session_id=session_id,
            task_id=task_id,
            actor=actor,
            idempotency_key=idempotency_key,
        )

    async def resolve(
        self,
        token: str,
        *,
        approved: bool,
        value: Any = None,
        session_id: str | None = None,
        task_id: str | None = None,
        actor: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Decide a pause; if its task waits for it, make the task PENDING in the same step and
        queue it.

        ``token`` is the pause's token or its public id. Every reader of the session's updates has
        the id. So an endpoint for outsiders takes tokens, and refuses what `is_pause_id`
        recognises. An endpoint for users also gives the ``session_id`` of its caller, and the
        ``task_id`` if it has it: a pause of another one is TokenUnknown.

        A task that does not wait for this pause yet gets the decision when it waits. The same
        ``idempotency_key`` repeated with the same decision gets the same answer, and queues again.

        A pause may have a form: see `TaskContext.open_pause`. An approval's value must fit it. A
        rejection's value is free, a reason for example.

        A pause may name who decides it. Then ``actor`` must be one of them, and the call is a vote:
        the task is not resumed before the deciding one. The same vote repeated is the same vote.

        Errors: InvalidDecision for a value that does not fit: the pause stays open; AlreadyVoted,
        NotADecider for a vote that does not count; ConfigError if
        the extra ``forms`` is needed to check it; TokenResolved (by whom, when, with what) for
        every later caller, and for a claim with another decision; TokenUnknown, also once the token
        has expired; InvalidTransition if the task is terminal; OutcomeUnknown, also if the
        pause is decided and the queue is unreachable: repeat the call with the same
        ``idempotency_key``.
        """
        return await self._resolve(
            token,
            approved,
            value,
            session_id=session_id,
            task_id=task_id,
            actor=actor or process_name(),
            idempotency_key=idempotency_key,
        )

    async def pauses(
        self,
        session_id: str | None = None,
        *,
        tag: str | None = None,
        decider: str | None = None,
    ) -> list[OpenPause]:
        """List the open pauses of a session or of all, the oldest first.

        ``decider`` lists what this actor may decide now: the actor is named and has not voted, or
        nobody is named.
        """
        return await list_open_pauses(self.store, session_id, tag=tag, decider=decider)

    async def list_pauses(
        self,
        session_id: str | None = None,
        *,
        tag: str | None = None,
        decider: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> PausePage:
        """Return a page of the open pauses of a session or of all, the oldest first. See `pauses`.

        ``after`` is the cursor of the page before, with the same filters: a pause that stays open
        is neither skipped nor repeated. A page costs the page, however many are open. That of a
        session also reads when each of its open pauses was opened. With filters a page may be
        short, or empty, and still have a cursor.

        Errors: InvalidField, also for a cursor that is none, or of other filters.
        """
        limits.count("limit", limit)
        return await list_pause_page(
            self.store,
            None if session_id is None else [session_id],
            listing=["pauses", session_id, tag, decider],
            limit=limit,
            after=after,
            wanted=wanted_pauses(tag, decider),
        )

    async def pause(self, token: str) -> OpenPause | None:
        """Return the open pause of a token or a public id, or None."""
        return await read_open_pause(self.store, token)

    async def delegate(
        self,
        token: str,
        to: str,
        *,
        actor: str,
        session_id: str | None = None,
        task_id: str | None = None,
    ) -> None:
        """Hand the vote of ``actor`` on a pause to another actor, who is not named in it.

        One step, published as an update. A repetition does nothing. ``to`` may hand the
        vote on, but not to an actor who has or had one: so there are no cycles. The pause must
        belong to the session and the task, if they are given.

        Errors: AlreadyVoted; NotADecider; DelegationRefused; TokenResolved, TokenUnknown;
        InvalidTransition if the task is terminal.
        """
        await delegate_vote(
            self.store, token, to, actor=actor, session_id=session_id, task_id=task_id
        )

    async def _resolve(
        self,
        token: str,
        approved: bool,  # noqa: FBT001 - private
        value: Any,
        *,
        session_id: str | None,
        task_id: str | None,
        actor: str,
        idempotency_key: str | None,
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> TaskState | None:
        with telemetry.deciding() as span:
            decided = await self._decisions.decide(
                token,
                approved=approved,
                value=value,
                actor=actor,
                idempotency_key=idempotency_key,
                session_id=session_id,
                task_id=task_id,
                before=before,
            )
            span.set(session_id=decided.session_id, task_id=decided.task_id)
            with behind_a_write(self.store.transport.address):
                found = decided.found
                if found is None:
                    found = await self.store.tasks.look(decided.session_id, decided.task_id)
                if found is not None and found.status is TaskStatus.PENDING:
                    self._books.record_status(found)
                    # Put, not ensured: the worker of the run that paused may still hold its job.
                    await self._queue.put(Job.ready(found)._replace(trace=span.carrier))
                return await self.get(decided.session_id, decided.task_id)
