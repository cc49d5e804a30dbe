"""What a handler has in its hands: say what it does, be steered, step durably, pause."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast, overload

from redis_state import codec
from redis_state.models import StateUpdate, TaskState, UpdateType
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.worker import telemetry
from redis_state.worker.inbox import Inbox
from redis_state.worker.life import Started, TaskLife

R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Decision:
    """How a pause was resolved: whether approved, with which value, by whom."""

    approved: bool
    value: Any
    by: str


class TaskPaused(BaseException):
    """The task is paused: the run ends here, and a later one begins at the handler's start."""


class TaskContext:
    """One run of a task. After a pause or a crash a handler is run again from its start.

    Then what it has noted comes back instead of happening twice: a `step` returns its stored
    result, a `pause` its decision. Both are found by their name and, among those of one name, by
    their order. The inbox too begins anew with all that the task was ever told.
    """

    def __init__(
        self, store: RedisStateStore, life: TaskLife, started: Started, inbox: Inbox, worker: str
    ) -> None:
        self.store: RedisStateStore = store
        self.inbox: Inbox = inbox
        self.worker = worker
        self._life = life
        self._started = started
        self._entries: Counter[str] = Counter()

    @property
    def task(self) -> TaskState:
        """The task as it stood when this run began."""
        return self._started.state

    @property
    def input(self) -> Any:
        """What the task was submitted with."""
        return self._started.input

    @property
    def epoch(self) -> int:
        """The number of this run: later runs have greater ones."""
        return self._started.held.epoch

    @property
    def attempt(self) -> int:
        """How many times the task has been started, this time included."""
        return self._started.attempts

    async def checkpoint(self) -> None:
        """Let steering act: wait while told to pause. Errors: TaskCancelled."""
        await self.inbox.checkpoint()

    async def progress(
        self, message: str, *, step: int | None = None, total: int | None = None, **details: Any
    ) -> None:
        """Tell how far the task is. A checkpoint. Errors: TaskCancelled, LeaseLost."""
        await self.emit(
            UpdateType.PROGRESS, {"message": message, **details}, step=step, total=total
        )

    async def thinking(self, text: str) -> None:
        """Tell what the agent thinks. A checkpoint."""
        await self.emit(UpdateType.THINKING, {"text": text})

    async def tool_call(self, name: str, arguments: Any = None, result: Any = None) -> None:
        """Tell that a tool was called. A checkpoint."""
        content = {"tool": name, "arguments": arguments, "result": result}
        await self.emit(UpdateType.TOOL_CALL, content)

    async def result(self, content: Any) -> None:
        """Tell a result, or a part of it. The task's own result is what its handler returns."""
        await self.emit(UpdateType.RESULT, content)

    async def emit(
        self, kind: UpdateType, content: Any, *, step: int | None = None, total: int | None = None
    ) -> None:
        """Append an update of any kind to the session. A checkpoint.

        Errors: TaskCancelled; LeaseLost if another worker has taken the task over.
        """
        await self.checkpoint()
        update = StateUpdate(
            session_id=self.task.session_id,
            task_id=self.task.task_id,
            trace_id=self.task.trace_id,
            update_type=kind,
            content=content,
            step_index=step,
            total_steps=total,
        )
        await self.store.updates.save(update, fence=self._started.held.fence)

    @overload
    async def step(
        self, name: str, work: Callable[P, Awaitable[R]], *arguments: P.args, **options: P.kwargs
    ) -> R: ...

    @overload
    async def step(
        self, name: str, work: Callable[P, R], *arguments: P.args, **options: P.kwargs
    ) -> R: ...

    @overload
    async def step(
        self, name: str, work: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any: ...

    async def step(
        self, name: str, work: Callable[..., Awaitable[R] | R], *arguments: Any, **options: Any
    ) -> R:
        """Do some work once per task and note its result; later runs return what was noted.

        The result comes back as JSON keeps it, in this run too. A crash between the work and its
        note does the work again: give what has effects outside an idempotency key. A checkpoint.
        Errors: the work's own; TaskCancelled, LeaseLost.
        """
        entry = self._entry("step", name)
        await self.checkpoint()
        if entry in self._started.journal:
            return cast("R", self._started.journal[entry])
        with telemetry.stepping(name):
            outcome = work(*arguments, **options)
            result = await outcome if inspect.isawaitable(outcome) else outcome
        return cast("R", await self._life.note_step(self._started, entry, result))

    async def pause(
        self,
        reason: str = "await_input",
        payload: Any = None,
        *,
        name: str | None = None,
        timeout: timedelta | None = None,
    ) -> Decision:
        """Pause the task until somebody resolves its token; return the decision.

        The run ends at the first call and the worker is free. Whoever resolves the token has the
        task run again, on any worker, where this call returns. Errors: TaskCancelled, LeaseLost.
        """
        entry = self._entry("pause", name or reason)
        await self.checkpoint()
        note = self._started.journal.get(entry)
        if note is not None and note["state"] == "decided":
            return Decision(bool(note["approved"]), note["value"], str(note["by"]))
        await self._life.pause(
            self._started,
            entry=entry,
            former=None if note is None else note.get("token"),
            reason=reason,
            payload=payload,
            ttl_ms=None if timeout is None else ms(timeout),
        )
        telemetry.event("pause", entry=entry)
        paused = TaskPaused()
        self.inbox.close(paused)
        raise paused

    async def approval(self, question: str, payload: Any = None, **options: Any) -> Decision:
        """Pause until somebody approves or rejects. Like `pause`."""
        content = {"question": question, "details": codec.plain(payload)}
        return await self.pause("await_approval", content, **options)

    def _entry(self, kind: str, name: str) -> str:
        self._entries[f"{kind}:{name}"] += 1
        return f"{kind}:{name}#{self._entries[f'{kind}:{name}']}"
