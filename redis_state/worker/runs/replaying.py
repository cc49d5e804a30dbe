"""Replay stored histories under other code, without effects, to find out whether it fits.

Each call of the handler returns what is recorded. Nothing is written, nothing is published, and no
work of a step runs. A replay ends where the journal ends, or at the first call that does not fit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from inspect import isawaitable
from time import monotonic
from typing import Any, NoReturn

from pydantic import SecretStr

from redis_state import limits
from redis_state.errors import HandlerChanged
from redis_state.models import TaskStatus
from redis_state.primitives.lease import HeldLease
from redis_state.serialization import codec
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.worker.handler.context import TaskContext
from redis_state.worker.handler.versions import choose
from redis_state.worker.tasks.execution.code_changes import answers_of
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.histories import TaskHistory
from redis_state.worker.tasks.recorded.call_order import CallOrder
from redis_state.worker.tasks.recorded.rehearsal import Rehearsal
from redis_state.worker.tasks.recorded.replay import Replay
from redis_state.worker.tasks.started import StartedRun

TIMEOUT_S = 10.0
_IDLE_S = 0.5
_CLEAN_UP_S = 1.0
# Nothing listens there, and nothing is sent.
_NOWHERE = "unix:///nonexistent/redis-state-replay"


class ReplayVerdict(StrEnum):
    """What a replay has found out."""

    FITS = "fits"
    DIVERGES = "diverges"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay of one task has found out.

    ``at`` is the new call that the task could continue with. ``called`` and ``recorded`` are the
    call that does not fit, and what is recorded there. Without ``called`` the handler ended before
    it used them. ``why`` says it in words. ``patches`` are the task's answers to `ctx.patched`.
    """

    session_id: str
    task_id: str
    handler: str
    version: str | None
    status: str
    verdict: ReplayVerdict
    why: str
    at: str | None = None
    called: str | None = None
    recorded: list[str] = field(default_factory=list[str])
    patches: Mapping[str, bool] = field(default_factory=dict[str, bool])

    @property
    def fits(self) -> bool:
        """Whether the code fits the journal."""
        return self.verdict is ReplayVerdict.FITS

    def document(self) -> dict[str, Any]:
        """Write it as JSON can hold it."""
        return asdict(self) | {"verdict": self.verdict.value}


async def replay_history(
    handlers: Mapping[str, Any], history: TaskHistory, *, timeout_s: float = TIMEOUT_S
) -> ReplayReport:
    """Replay one task under these handlers. Needs no server.

    The handler runs in this process: what it does outside of steps happens. ``timeout_s`` ends a
    handler that waits for something else than its recorded calls; one that blocks the event loop
    it cannot end. Errors: InvalidField.
    """
    return await _Replayed(handlers, history).run(limits.seconds("timeout_s", timeout_s))


class _Replayed:
    def __init__(self, handlers: Mapping[str, Any], history: TaskHistory) -> None:
        self._handlers = handlers
        self._history = history
        self._rehearsal = Rehearsal()
        self._context: TaskContext | None = None
        self._started = _start(history)
        self._started.replay.rehearsal = self._rehearsal
        self._chosen = choose(handlers, self._started)

    async def run(self, timeout_s: float) -> ReplayReport:
        if self._chosen.lacks is not None:
            return self._says(
                ReplayVerdict.DIVERGES, f"there is no version {self._chosen.lacks} of its handler"
            )
        if self._chosen.code is None:
            return self._says(ReplayVerdict.DIVERGES, "there is no such handler")
        handling = asyncio.create_task(self._handle(self._chosen.code))
        try:
            in_time = await self._watch(handling, monotonic() + timeout_s)
            return self._judge(handling, None if in_time else timeout_s)
        finally:
            rest: set[asyncio.Task[Any]] = {handling}
            if self._context is not None:
                rest |= self._context.unfinished()
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=_CLEAN_UP_S)
            for task in rest:
                if task.done() and not task.cancelled():
                    task.exception()

    async def _handle(self, code: Any) -> None:
        inbox = Inbox(
            _offline(self._history.namespace),
            self._history.state.session_id,
            self._history.state.task_id,
            after=None,
            replay=self._started.replay,
            on_hard_cancel=lambda: None,
            on_priority=lambda _: None,
        )
        store = _offline(self._history.namespace)
        self._context = context = TaskContext(store, self._started, inbox, "replay")
        context.store = _NoStore(store.settings)  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
        outcome = code(context)
        if isawaitable(outcome):
            await outcome

    async def _watch(self, handling: asyncio.Task[None], ends_s: float) -> bool:
        """Wait until the replay has come to its end; return whether that was in time."""
        rehearsal = self._rehearsal
        while not handling.done():
            if rehearsal.diverged or (rehearsal.waiting and not self._unused()):
                return True
            rehearsal.moved.clear()
            left_s = ends_s - monotonic()
            if left_s <= 0:
                return False
            moving = asyncio.create_task(rehearsal.moved.wait())
            patience_s = min(left_s, _IDLE_S) if rehearsal.waiting else left_s
            done, _ = await asyncio.wait(
                {handling, moving}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            moving.cancel()
            if not done and rehearsal.waiting:
                return True
        return True

    def _judge(self, handling: asyncio.Task[None], late_s: float | None) -> ReplayReport:
        unused, waiting = self._unused(), self._rehearsal.waiting
        if self._rehearsal.diverged:
            called, recorded = self._rehearsal.diverged
            why = f"it calls {called} where {recorded} is recorded"
            return self._says(ReplayVerdict.DIVERGES, why, called=called, recorded=[recorded])
        if handling.done() and not handling.cancelled():
            return self._judge_end(handling.exception(), unused)
        if waiting and not unused:
            return self._says(ReplayVerdict.FITS, f"it continues with {waiting[0]}", at=waiting[0])
        if waiting:
            why = f"it comes to {waiting[0]} and has not used what is recorded, whose order is open"
            return self._says(
                ReplayVerdict.UNDECIDED, why, at=waiting[0], called=waiting[0], recorded=unused
            )
        why = f"it is not through after {late_s:g} s" if late_s else "it cancelled itself"
        return self._says(ReplayVerdict.UNDECIDED, why, recorded=unused)

    def _judge_end(self, error: BaseException | None, unused: list[str]) -> ReplayReport:
        if isinstance(error, HandlerChanged):
            return self._says(
                ReplayVerdict.DIVERGES, str(error), called=error.called, recorded=error.entries
            )
        if isinstance(error, _Undecidable):
            return self._says(ReplayVerdict.UNDECIDED, str(error), recorded=unused)
        ends = "returns" if error is None else f"raises {type(error).__name__}"
        if unused:
            why = f"it {ends} and has not used what is recorded"
            return self._says(ReplayVerdict.DIVERGES, why, recorded=unused)
        if error is None or self._history.state.status is TaskStatus.FAILED:
            return self._says(ReplayVerdict.FITS, f"it {ends}")
        return self._says(ReplayVerdict.UNDECIDED, f"it {ends} after all that is recorded")

    def _unused(self) -> list[str]:
        return [] if self._context is None else self._context.unused()

    def _says(self, verdict: ReplayVerdict, why: str, **facts: Any) -> ReplayReport:
        state, journal = self._history.state, dict(self._history.journal)
        return ReplayReport(
            session_id=state.session_id,
            task_id=state.task_id,
            handler=self._history.handler,
            version=self._chosen.version,
            status=state.status.value,
            verdict=verdict,
            why=why,
            patches=answers_of(journal),
            **facts,
        )


class _Undecidable(BaseException):
    """A handler needs what a replay does not have. No Exception: no handler handles it."""


class _NoStore:
    """The store of a replayed handler: it has settings, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings

    def __getattr__(self, name: str) -> NoReturn:
        raise _Undecidable(f"it uses ctx.store.{name} outside of a step")


def _start(history: TaskHistory) -> StartedRun:
    """Begin a run as the next one of the task would begin, of no lease."""
    journal = dict(history.journal)
    held = HeldLease("replay", "replay", 0)
    return StartedRun(
        held=held,
        state=replace(history.state, status=TaskStatus.RUNNING, result=None, error=None),
        handler=history.handler,
        input=codec.decode(codec.encode(history.input)),
        attempts=history.attempts + (not history.state.status.is_terminal),
        inbox=None,
        journal=journal,
        taken_over=False,
        trace={},
        secret=secrets.token_urlsafe(32),
        replay=Replay(held, journal, known=len(journal)),
        order=CallOrder(journal),
    )


def _offline(namespace: str) -> RedisStateStore:
    return RedisStateStore(Settings(url=SecretStr(_NOWHERE), namespace=namespace))
