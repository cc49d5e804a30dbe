"""How a client erases a session: its tasks are cancelled, then nothing of it is kept."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Literal

from redis_state import limits
from redis_state.archive.protocol import Archive
from redis_state.erasure import Eraser, ErasureReport
from redis_state.erasure.finding import Progress
from redis_state.erasure.key_owners import check_session
from redis_state.errors import CorruptState, InvalidField
from redis_state.models.attributes import AttributeValue
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.worker.queue.jobs.withdrawing import withdraw
from redis_state.worker.queue.queue import Queue

_REASON = "the session is erased"
_PAUSE_S = 0.1
_POLICIES = ("cancel", "refuse", "fence")


class ClientErasing(ABC):
    """What a client erases."""

    store: RedisStateStore
    _queue: Queue

    @abstractmethod
    async def cancel(
        self,
        session_id: str,
        task_id: str,
        *,
        reason: str | None = None,
        hard: bool = False,
        idempotency_key: str | None = None,
    ) -> bool:
        """Cancel a task."""

    async def forget(
        self,
        session_id: str,
        *,
        dry_run: bool = False,
        running: Literal["cancel", "refuse", "fence"] = "cancel",
        timeout_s: float = 30.0,
        actor: str | None = None,
        archive: Archive | None = None,
        progress: Progress | None = None,
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase a session: in Redis, its queue, the store of claims and the archive.

        With ``cancel``, its unfinished tasks are cancelled first, the running ones hard. What
        still runs after ``timeout_s`` loses its lease. See `redis_state.erasure.Eraser.forget`.
        """
        if running not in _POLICIES:
            raise InvalidField("running", f"must be one of {', '.join(_POLICIES)}")
        check_session(session_id)
        async with Eraser(self.store, archive, progress=progress) as eraser:
            cancelled = 0
            if not dry_run:
                await eraser.check_reach([session_id], leave_unset=leave_unset)
            if running == "cancel" and not dry_run:
                cancelled = await self._cancel_all(eraser, session_id, timeout_s)
            if not dry_run and (running != "refuse" or not await eraser.running(session_id)):
                await withdraw(self._queue, self.store, session_id)
            report = await eraser.forget(
                session_id,
                dry_run=dry_run,
                running="refuse" if running == "refuse" else "fence",
                actor=actor,
                leave_unset=leave_unset,
            )
            if not dry_run:
                await withdraw(self._queue, self.store, session_id)
            report.cancelled = cancelled
            return report

    async def forget_user(
        self,
        user: AttributeValue,
        *,
        attribute: str = "user",
        shared: bool = False,
        dry_run: bool = False,
        running: Literal["cancel", "refuse", "fence"] = "cancel",
        timeout_s: float = 30.0,
        actor: str | None = None,
        archive: Archive | None = None,
        progress: Progress | None = None,
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase the sessions of a user, as `forget` does, and what is under the user's name.

        See `redis_state.erasure.Eraser.forget_user`.
        """
        if running not in _POLICIES:
            raise InvalidField("running", f"must be one of {', '.join(_POLICIES)}")
        async with Eraser(self.store, archive, progress=progress) as eraser:
            cancelled = 0
            sessions: list[str] = []
            if not dry_run:
                sessions = await eraser.sessions_of(user, attribute=attribute, shared=shared)
            if not dry_run:
                await eraser.check_reach(sessions, leave_unset=leave_unset)
            if running == "cancel":
                for session_id in sessions:
                    cancelled += await self._cancel_all(eraser, session_id, timeout_s)
            if running != "refuse" or not [each for each in sessions if await eraser.running(each)]:
                for session_id in sessions:
                    await withdraw(self._queue, self.store, session_id)
            report = await eraser.forget_user(
                user,
                attribute=attribute,
                shared=shared,
                dry_run=dry_run,
                running="refuse" if running == "refuse" else "fence",
                actor=actor,
                leave_unset=leave_unset,
            )
            for session_id in sessions:
                await withdraw(self._queue, self.store, session_id)
            report.cancelled = cancelled
            return report

    async def _cancel_all(self, eraser: Eraser, session_id: str, timeout_s: float) -> int:
        """Cancel a session's unfinished tasks, and wait for those that run; return how many."""
        tasks = await self.store.tasks.ids(session_id)
        looks = [await self.store.tasks.look(session_id, task) for task in tasks]
        unfinished = [
            view.task_id for view in looks if view is not None and not view.status.is_terminal
        ]
        for task_id in unfinished:
            # What is damaged of it is erased too, and its lease is lost.
            with suppress(CorruptState):
                await self.cancel(session_id, task_id, reason=_REASON, hard=True)
        # Those that still run then lose their leases.
        with suppress(TimeoutError):
            async with timeout(limits.timeout("timeout_s", timeout_s)):
                while await eraser.running(session_id):  # noqa: ASYNC110 - another process ends them
                    await asyncio.sleep(_PAUSE_S)
        return len(unfinished)
