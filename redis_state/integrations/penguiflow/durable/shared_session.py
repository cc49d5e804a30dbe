"""A StreamingSession whose tasks are those of all processes that have the session."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from penguiflow.sessions import StreamingSession
from penguiflow.state import (
    StateUpdate,
    SteeringEvent,
    SteeringEventType,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from penguiflow.steering import (
    SteeringValidationError,
    sanitize_steering_event,
    validate_steering_event,
)

from redis_state.errors import BackendError, CursorGap, LostRace
from redis_state.integrations.penguiflow.durable.registry import ENDED, LEFT, SharedRegistry
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_FINISH_S = 5.0
_DECISIONS = frozenset({SteeringEventType.APPROVE, SteeringEventType.REJECT})
_CHANGES = frozenset(
    {
        SteeringEventType.CANCEL,
        SteeringEventType.PAUSE,
        SteeringEventType.RESUME,
        SteeringEventType.PRIORITIZE,
    }
)


class SharedSession(StreamingSession):  # type: ignore[misc]  # penguiflow has no types
    """PenguiFlow's session, with the tasks and updates of all processes that have it.

    ``owner`` says that no other process has the session. Errors, beside PenguiFlow's: BackendError.
    """

    def __init__(
        self, session_id: str, *, state_store: Any, owner: bool = False, **options: Any
    ) -> None:
        super().__init__(session_id, state_store=state_store, **options)
        # Of PenguiFlow's classes.
        self._kept: Any = state_store.store
        self._owner = owner
        self._task_handles: dict[str, asyncio.Task[None]]
        self._registry = SharedRegistry(state_store, session_id, on_lost=self._stop_task)
        self._spawning = asyncio.Lock()
        self._entering: set[str] = set()
        self._taken_over: set[str] = set()
        # Who runs a task itself, and of which tasks a take-over has cancelled that one.
        self._callers: dict[str, asyncio.Task[Any]] = {}
        self._stopped: set[str] = set()

    async def hydrate(self) -> None:
        """Read the tasks, and settle those whose process is gone. Once."""
        if not self._hydrated:
            await super().hydrate()
            await self.settle()

    async def settle(self) -> list[str]:
        """Fail the tasks that their process has left; return their ids.

        A process has left a task if it has not renewed its lease for `session_task_lease`. Their
        groups count them as failed. Of all processes one settles a task.
        """
        settled: list[str] = []
        for task in await self._registry.list_active(self.session_id):
            failed = await self._registry.settle(task.task_id, alone=self._owner)
            if failed is not None:
                log.warning("task %r is failed: %s", task.task_id, LEFT)
                self._emit_status_change(failed, reason="left")
                settled.append(task.task_id)
        for group in await self._kept.groups.list(self.session_id):
            for task_id in group.pending_task_ids:
                # Also what another process settled, if it died before it could say so.
                task = self._registry.remembered(task_id)
                if task is not None and task.status is TaskStatus.FAILED and task.error == LEFT:
                    self._taken_over.discard(task_id)
                    await self.mark_task_complete_in_group(group.group_id, task_id, success=False)
        return settled

    async def close(self) -> None:
        """Wait for ended tasks to finish, and cancel running ones.

        PenguiFlow works on a task after its status has changed: its context patch, its place in a
        group, its result's update. That work is not interrupted. A task is CANCELLED if it does not
        end by itself in the moment of its cancellation. All this is waited for, 10 s at most.
        """
        until = asyncio.get_running_loop().time() + _FINISH_S
        while ended := self._handles(ended=True):
            if not await self._finish(ended, until):
                break
        for task_id in self._handles(ended=True):
            if self._status(task_id) is not TaskStatus.CANCELLED:
                # It ends when its calls have their outcome.
                del self._task_handles[task_id]
        running, self._task_handles = self._task_handles, {}
        for handle in running.values():
            handle.cancel()
        try:
            await self._finish(running, until)
            await asyncio.gather(*map(self._cancel_left, running))
        finally:
            try:
                await super().close()
            finally:
                await self._registry.aclose()

    # Tasks that run here

    async def spawn_task(self, pipeline: Any, **options: Any) -> str:
        """Create a task and run it here. The limits count the tasks of all processes.

        Processes that spawn in the same moment may go beyond a limit by one each. A task of this
        id that another process still runs is taken over: it is stopped there.
        """
        async with self._spawning:
            task_id: str = await super().spawn_task(pipeline, **options)
            return task_id

    async def run_task(self, pipeline: Any, *, task_id: str | None = None, **options: Any) -> Any:
        """Create a task, run it here, and return its result. See `spawn_task`.

        Errors: LostRace if the task is taken over.
        """
        task_id = task_id or secrets.token_hex(8)
        caller: Any = asyncio.current_task()
        await self._spawning.acquire()
        self._entering.add(task_id)
        self._callers[task_id] = caller
        try:
            result = await super().run_task(pipeline, task_id=task_id, **options)
            if task_id in self._stopped:
                await asyncio.sleep(0)  # cancelled here, and not where its caller waits next
        except asyncio.CancelledError:
            if task_id in self._stopped and not caller.uncancel():
                raise LostRace(f"task {task_id!r} was taken over") from None
            raise
        else:
            return result
        finally:
            self._stopped.discard(task_id)
            if self._callers.get(task_id) is caller:
                del self._callers[task_id]
            self._entered(task_id)
            if task_id in self._registry.leases:
                # Its caller was cancelled: PenguiFlow would leave it RUNNING.
                await self._registry.update_task(
                    task_id, status=TaskStatus.CANCELLED, error="cancelled"
                )

    async def _execute_task(self, *, state: TaskState, pipeline: Any, **options: Any) -> Any:
        self._entered(state.task_id)
        if state.task_id in self._registry.leases:
            self._taken_over.discard(state.task_id)
        starting, start = self._registry.starting, (state.task_id, asyncio.current_task())
        self._registry.expected.add(start)

        async def run(runtime: Any) -> Any:
            starting.discard(start)
            if state.task_id not in self._registry.leases:
                # Taken over before there was anything to stop.
                raise asyncio.CancelledError
            return await pipeline(runtime)

        try:
            return await super()._execute_task(state=state, pipeline=run, **options)
        except BaseException as error:
            if start in starting and self._concurrency_semaphore is not None:
                # Its start was not saved: PenguiFlow has taken the permit, and not given it back.
                self._concurrency_semaphore.release()
            if isinstance(error, Exception):
                # If its end was not saved it is settled, here or elsewhere, once its lease is over.
                self._registry.leases.drop(state.task_id)
            raise
        finally:
            self._registry.expected.discard(start)
            starting.discard(start)

    async def _cancel_left(self, task_id: str) -> None:
        """Cancel a task that did not end by itself. If the server is away its lease runs out."""
        if self._status(task_id) in ENDED:
            return
        try:
            async with timeout(_FINISH_S):
                await self._registry.update_task(
                    task_id, status=TaskStatus.CANCELLED, error="session_closed"
                )
        except (BackendError, TimeoutError) as error:
            log.warning("task %r is left as it is: %s", task_id, str(error) or "no answer")

    def _entered(self, task_id: str) -> None:
        if task_id in self._entering:
            self._entering.remove(task_id)
            self._spawning.release()

    async def _ensure_limits(self, task_type: TaskType) -> None:
        try:
            await super()._ensure_limits(task_type)
        except RuntimeError:
            if not await self.settle():
                raise
            await super()._ensure_limits(task_type)

    # Tasks that run anywhere

    async def steer(self, event: SteeringEvent) -> bool:
        """Influence a task, wherever it runs.

        For a task that runs here the answer is PenguiFlow's. For one that runs elsewhere True
        says that the event is stored: the process that runs the task acts on it, and asks for a
        confirmation if its control policy wants one. A task that has ended is neither cancelled
        nor paused, resumed or prioritised: False.
        """
        if event.session_id != self.session_id or self._decides_patch(event):
            return bool(await super().steer(event))
        if not await self._registry.runs_elsewhere(event.task_id):
            task = await self._registry.get_task(event.task_id)
            if task is not None and task.status in ENDED and event.event_type in _CHANGES:
                return False
            return bool(await super().steer(event))
        limit = self._limits.max_steering_payload_bytes
        event = sanitize_steering_event(event, max_payload_bytes=limit)
        try:
            validate_steering_event(event)
        except SteeringValidationError:
            return False
        if self._is_duplicate_event(event.task_id, event.event_id):
            return False
        await self._state_store.save_steering(event)
        return True

    async def subscribe(
        self,
        *,
        task_ids: list[str] | None = None,
        update_types: list[UpdateType] | None = None,
        since_id: str | None = None,
    ) -> AsyncGenerator[StateUpdate]:
        """Subscribe to the updates of all processes, from now on or after one of them.

        Each comes once, in the order in which the store has them, across lost connections. An
        unknown ``since_id`` gives all that is kept. Close what is returned. Errors of the
        iterator: BackendUnavailable if the server stays away for 5 minutes.
        """
        # What was published here before this call is on its way to the store after one turn.
        await asyncio.sleep(0)
        after: str | None = await self._kept.update_cursor(self.session_id, since_id)
        return self._updates_after(after, task_ids or [], update_types or [])

    async def _updates_after(
        self, after: str | None, task_ids: list[str], update_types: list[UpdateType]
    ) -> AsyncGenerator[StateUpdate]:
        only = task_ids[0] if len(task_ids) == 1 else None
        while True:
            entries = self._kept.watch_updates(self.session_id, after=after, task_id=only)
            try:
                async with aclosing(entries):
                    async for entry in entries:
                        after, update = entry.cursor, entry.value
                        of_task = not task_ids or update.task_id in task_ids
                        if of_task and (not update_types or update.update_type in update_types):
                            yield update
            except CursorGap as gap:
                log.warning("a subscriber of session %r missed updates: %s", self.session_id, gap)
                after = gap.resume_after

    def _decides_patch(self, event: SteeringEvent) -> bool:
        patch_id = event.payload.get("patch_id")
        return event.event_type in _DECISIONS and patch_id in self._pending_patches

    def _stop_task(self, task_id: str) -> None:
        log.warning("task %r is stopped here: its lease was taken over", task_id)
        self._taken_over.add(task_id)
        handle, caller = self._task_handles.get(task_id), self._callers.get(task_id)
        if caller is not None:
            self._stopped.add(task_id)
            caller.cancel()
        elif handle is not None:
            handle.cancel()

    def _status(self, task_id: str) -> TaskStatus | None:
        task = self._registry.remembered(task_id)
        return None if task is None else task.status

    def _handles(self, *, ended: bool) -> dict[str, asyncio.Task[None]]:
        """Find the tasks of this session that have ended, or those that have not."""
        found = self._task_handles.items()
        return {name: handle for name, handle in found if (self._status(name) in ENDED) == ended}

    async def _finish(self, handles: dict[str, asyncio.Task[None]], until: float) -> bool:
        """Wait until then at most for tasks' handles; return whether all have finished."""
        waited = set(handles.values()) - {asyncio.current_task()}
        late = set[asyncio.Task[None]]()
        if waited:
            left = max(0.0, until - asyncio.get_running_loop().time())
            _, late = await asyncio.wait(waited, timeout=left)
        for task_id, handle in handles.items():
            if handle.done():
                self._task_handles.pop(task_id, None)
        if late:
            log.warning("%d tasks are not saved to their end yet", len(late))
        return all(handle.done() for handle in handles.values())


__all__ = ["SharedSession"]
