"""The steps of one run: their names, their records, their retries, and missing ones.

A name that is used several times is counted where it is called: in the handler, in a `branch` of
it, or in the work of another step. So the second "fetch" of a loop is ``fetch#2`` in every run.
Counting needs an order, and concurrent asyncio tasks have none. So a name belongs to the first
asyncio task that uses it. The same holds for pauses and children, which are named here too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, Literal, TypeVar

from redis_state.errors import BackendError, HandlerChanged, InvalidField
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.tasks.execution.emitter import Emitter
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.patches import Patches
from redis_state.worker.tasks.execution.retries import Retried, RetryPolicy, try_by
from redis_state.worker.tasks.execution.running import RunningSteps, Shown, write_running
from redis_state.worker.tasks.recorded.call_order import CALLS
from redis_state.worker.tasks.recorded.journal import (
    INLINE_BYTES,
    Journals,
    StepNote,
    unvisited,
    without_result,
)
from redis_state.worker.tasks.recorded.replay import Lane
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """The policy of a worker for steps.

    ``retry`` is how a failed step is retried, unless its work is `retried` by another policy. None
    makes one attempt. ``on_changed`` applies to a task whose handler ended without using an entry
    of earlier runs: ``notify`` completes the task and publishes it, ``fail`` fails it. Results of
    more than ``inline_bytes``, as JSON, are kept in chunks.
    """

    retry: RetryPolicy | None = None
    on_changed: Literal["notify", "fail"] = "notify"
    inline_bytes: int = INLINE_BYTES

    def __post_init__(self) -> None:
        """Refuse terms that make no sense, before a worker begins under them."""
        if self.on_changed not in ("notify", "fail"):
            raise InvalidField("on_changed", "'notify' or 'fail' is needed")
        if self.inline_bytes < 0:
            raise InvalidField("inline_bytes", "0 or more bytes are needed")


class NameScope:
    """Where names are counted. ``entry`` is that of the step whose work it is, if it is one."""

    def __init__(
        self, path: str = "", *, name: str = "", entry: str = "", attempt: str = "", depth: int = 0
    ) -> None:
        self.name: str = name
        self.entry: str = entry
        # Where an attempt of a step's work counts its updates: the next one may publish others.
        self.attempt: str = attempt
        self.path: str = path
        # Of so many steps, one in the other, it is the innermost.
        self.depth: int = depth
        # The asyncio task in which it was begun.
        self.home: object = _caller()
        self._counts: Counter[str] = Counter()
        self._callers: dict[str, object] = {}

    def ask(self, kind: str, name: str) -> str:
        """Count a name, and return its place. Errors: InvalidField."""
        place = self.peek(kind, name)
        self._check_caller(kind, name)
        self._counts[f"{kind}:{name}"] += 1
        return place

    def peek(self, kind: str, name: str) -> str:
        """Return the place of the next use of a name."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("name", f"text is needed, not {type(name).__name__}")
        # Doubled, so that a single one is always ours, and no two places are the same text.
        escaped = name.replace("#", "##")
        return f"{self.path}{escaped}#{self._counts[f'{kind}:{name}'] + 1}"

    def keyed(self, kind: str, name: str, key: str) -> str:
        """Return the place of a name that a key identifies, not counting."""
        place = self.peek(kind, name).rpartition("#")[0]
        return f"{place}#={key}"

    def _check_caller(self, kind: str, name: str) -> None:
        caller = _caller()
        if self._callers.setdefault(f"{kind}:{name}", caller) is not caller:
            raise InvalidField(
                "name",
                f"{name!r} is used by two asyncio tasks at once, whose order may be another in the "
                "next run: give each its own names, or its own ctx.branch(...)",
            )


_WORKING: ContextVar[NameScope | None] = ContextVar("redis_state_step", default=None)


class Steps:
    """The steps of one run, or of one branch of its handler."""

    def __init__(
        self, store: RedisStateStore, started: StartedRun, inbox: Inbox, policy: StepPolicy
    ) -> None:
        self._store = store
        self._started = started
        self._inbox = inbox
        self._policy = policy
        self._journals = Journals(store.base)
        self._emitter = Emitter(store, started)
        self._keys = store.tasks.keys(started.state.session_id, started.state.task_id)
        self._recorded = dict(started.journal)
        self._requested: set[str] = set()
        self._doing: dict[str, asyncio.Lock] = {}
        self._attempts: Counter[str] = Counter()
        # The steps that run, until they are recorded.
        self._working: Counter[str] = Counter()
        # How far the handler had come when it asked for an entry.
        self._places: dict[str, int] = {}
        self._running = RunningSteps(self._show_running)
        self._root = self._scope = NameScope()
        self._patches = Patches(started, inbox)
        self._calling: dict[str, asyncio.Task[Any]] = {}
        # Called with each step that has failed.
        self.failed: Callable[[str, Exception], None] = lambda _entry, _error: None
        self._made_in: NameScope | None = None

    def branch(self, name: str) -> Steps:
        """Make a part of the handler that counts names for itself."""
        made = copy(self)
        # Counted with the steps of this name, or both would name what is in them alike.
        scope = NameScope(f"{self._here.ask('step', name)}/")
        made._scope, made._made_in = scope, _WORKING.get()  # noqa: SLF001 - a copy of this object
        return made

    def ask(self, kind: str, name: str) -> str:
        """Return the entry of the current use of a name, and count it."""
        return self.ask_keyed(f"{kind}:{self._here.ask(kind, name)}", counted=True)

    def ask_keyed(self, entry: str, *, counted: bool = False) -> str:
        """Return an entry that is found without counting, and mark it as used."""
        self._requested.add(entry)
        if _WORKING.get() is None and entry.startswith(CALLS):
            self._started.order.begin(entry, own=self._root.home is _caller(), counted=counted)
        lane = self.lane(entry)
        lane.advance()
        self._places[entry] = lane.order
        return entry

    def place_of(self, entry: str) -> int:
        """Return how far the handler had come when it used an entry."""
        return self._places.get(entry, 0)

    def lane(self, first: Any = None, *, emits: bool = False) -> Lane:
        """Return the lane of the running asyncio task, which is about to do ``first``."""
        working = _WORKING.get() or self._root
        branch = "" if self._scope is self._root else self._scope.path
        own = working.home is _caller()
        if working is self._root and not own:
            self._started.order.sequential = False
        scope = working.attempt if emits else working.entry
        return self._started.replay.lane(scope, own=own, branch=branch, first=first)

    def check_same(self, entry: str, asks: str) -> None:
        """Refuse another asyncio task than the handler's own what an earlier run did not ask so.

        That run may have ended before a second task came to use the name: its note may be the
        other's. The handler's own task always comes in one order. Errors: InvalidField.
        """
        note = self._started.journal.get(entry)
        if note is None or _caller() is self._root.home or note.get("asks", asks) == asks:
            return
        raise InvalidField(
            "name",
            f"{entry!r} was another question in an earlier run, maybe another asyncio task's: give "
            "each its own names, or its own ctx.branch(...)",
        )

    def effect_id(self, name: str | None) -> str:
        """Return the key of a step's effects. See `TaskContext.effect_id`."""
        working = _WORKING.get()
        if working is not None and name in (None, working.name):
            entry = working.entry
        elif name is None:
            raise InvalidField("name", "is needed outside of a step's work")
        else:
            entry = self.next_entry("step", name)
        state = self._started.state
        return effect_id(self._store.settings.namespace, state.session_id, state.task_id, entry)

    def do(
        self,
        name: str,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        *,
        checkpoint: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """Give a step its number now, in call order; do it once the coroutine is awaited."""
        entry = self.ask("step", name)
        policy = work.policy if isinstance(work, Retried) else self._policy.retry
        once = partial(work, *arguments, **options)
        doing = self._do(entry, name, once, policy, self.lane(), checkpoint=checkpoint)
        return self._counted(entry, doing)

    async def do_keyed(
        self,
        name: str,
        key: str,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Do a step that is found by its key; who asks for it meanwhile waits for its result."""
        entry = self.ask_keyed(f"step:{self._here.keyed('step', name, key)}")
        policy = work.policy if isinstance(work, Retried) else self._policy.retry
        async with self._doing.setdefault(entry, asyncio.Lock()):
            once = partial(work, *arguments, **options)
            return await self._counted(entry, self._do(entry, name, once, policy, self.lane()))

    def patched(self, name: str) -> bool:
        """Return whether this point is new to the task. See `TaskContext.patched`."""
        return self._patches.answer(self._patch(name), self._has_passed)

    def retire_patch(self, name: str) -> None:
        """Check that no older path is needed. See `TaskContext.retire_patch`."""
        self._patches.retire(self._patch(name), self._has_passed)

    def _patch(self, name: str) -> str:
        return self._here.peek("patch", name).rpartition("#")[0]

    def _has_passed(self) -> bool:
        """Return whether an earlier run has recorded something beyond this point."""
        run, working = self._started.replay, _WORKING.get() or self._root
        own = working.home is _caller()
        if own and working is self._root and self._started.order.ahead:
            return True
        branch = "" if self._scope is self._root else self._scope.path
        return run.is_behind(working.entry, own=own, branch=branch)

    def lane_of(self, key: str | None, kind: UpdateType, content: Any) -> Lane:
        """Return the lane of an update: that of its key, or of the running asyncio task."""
        if key is None:
            return self.lane([kind.value, content], emits=True)
        lane = self._started.replay.named(f"key:{key}")
        lane.once = True
        return lane

    def next_entry(self, kind: str, name: str) -> str:
        """Return the entry of the next use of a name, here."""
        return f"{kind}:{self._here.peek(kind, name)}"

    @property
    def in_own_task(self) -> bool:
        """Whether the caller is the asyncio task in which the handler began."""
        return _caller() is self._root.home

    @property
    def others_work(self) -> bool:
        """Whether a step runs, other than those in whose work the caller is."""
        working = _WORKING.get()
        return self._working.total() > (0 if working is None else working.depth)

    @property
    def in_work(self) -> bool:
        """Whether the caller is the work of a step, which is done again until it is recorded."""
        return _WORKING.get() is not None

    async def record(self, entry: str, value: bytes) -> None:
        """Record what this run has learned. Errors: LeaseLost, JournalRewound."""
        run = self._started.replay
        await self._journals.record(self._keys, entry, value, run=run, lane=self.lane())

    async def check_call(self, entry: str) -> None:
        """Report, or fail, if a new call stands where earlier runs recorded another one.

        Call it before the work of something that is not recorded. In a run that fails by it every
        later checkpoint raises the same. Errors: HandlerChanged; LeaseLost.
        """
        missed, rehearsal = self._started.order.missed_at(entry), self._started.replay.rehearsal
        if missed is None:
            return
        if rehearsal is not None:
            rehearsal.diverged = rehearsal.diverged or (entry, missed)
            return
        changed = HandlerChanged(self._keys.task_id, [missed], called=entry)
        if self._policy.on_changed == "fail":
            self._inbox.close(changed)
            raise changed
        log.warning("%s", changed)
        content = {"notice": "handler_changed", "called": entry, "recorded": missed}
        await self.report("diverged", content)

    async def rehearsed(self, call: str) -> None:
        """Wait for ever before a call that is not recorded, in a run that only rehearses."""
        if self._started.replay.rehearsal is not None:
            await self._started.replay.rehearsal.end(call)

    def unused(self) -> list[str]:
        """List what earlier runs recorded and this one has not used."""
        return unvisited(self._started.journal.keys(), self._requested)

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return the asyncio tasks of the handler that still run, without the one that asks."""
        found = {*self._started.replay.asyncio_tasks(), *self._calling.values()}
        return {task for task in found if not task.done()} - {asyncio.current_task()}

    def ask_undo(self, name: str) -> str:
        """Count a compensation's name, and return its place. Errors: InvalidField."""
        if _WORKING.get() is not None:
            raise InvalidField(
                "undo",
                "cannot be registered in the work of a step or of another undo, which a later run "
                "does not do again: register it in the handler",
            )
        # A single sign at the front is no step's: what is done in it has names of its own.
        return f"#{self._here.ask('undo', name)}"

    async def undo(self, place: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run a compensation until it succeeds or its policy ends it. Errors: the work's last."""
        policy = work.policy if isinstance(work, Retried) else self._policy.retry or RetryPolicy()
        entry = f"undo:{place}"
        name = place[1:].rpartition("#")[0]
        await try_by(
            policy,
            partial(self._once, entry, name, partial(work, *arguments)),
            waiting=_awaited,
            failed=partial(self._attempt_failed, entry, policy.attempts),
        )

    async def check_changed(self) -> None:
        """Report, or fail, if earlier runs recorded an entry that this one has not used.

        Call it at the end of a complete run. Errors: HandlerChanged; LeaseLost.
        """
        if isinstance(self._inbox.over, HandlerChanged):
            # The handler handles every error.
            raise self._inbox.over
        missed = self.unused()
        # A handler that returns after a pause has caught what ends its run: another one follows.
        if not missed or self._inbox.over is not None or self._started.replay.rehearsal is not None:
            return
        changed = HandlerChanged(self._keys.task_id, missed)
        if self._policy.on_changed == "fail":
            raise changed
        log.warning("%s", changed)
        await self.report("changed", {"notice": "handler_changed", "entries": missed})

    @property
    def _here(self) -> NameScope:
        """Where names are counted now: the step whose work this is, unless made inside of it."""
        working = _WORKING.get()
        return self._scope if working is None or working is self._made_in else working

    async def _counted(self, entry: str, doing: Coroutine[Any, Any, T]) -> T:
        self._working[entry] += 1
        try:
            return await doing
        finally:
            self._working[entry] -= 1

    async def _do(
        self,
        entry: str,
        name: str,
        work: Callable[[], Any],
        policy: RetryPolicy | None,
        lane: Lane,
        *,
        checkpoint: bool = False,
    ) -> Any:
        caller = asyncio.current_task()
        if caller is not None:
            self._calling[entry] = caller
        try:
            return await self._recorded_once(entry, name, work, policy, lane, checkpoint=checkpoint)
        except Exception as error:
            self.failed(entry, error)
            raise
        finally:
            self._calling.pop(entry, None)
            self._started.order.end(entry)

    async def _recorded_once(
        self,
        entry: str,
        name: str,
        work: Callable[[], Any],
        policy: RetryPolicy | None,
        lane: Lane,
        *,
        checkpoint: bool = False,
    ) -> Any:
        note = self._recorded.get(entry)
        await self._inbox.checkpoint(steps=0 if note is not None else 1)
        if isinstance(note, StepNote):
            return await self._journals.result(self._keys, entry, note)
        await self.check_call(entry)
        await self.rehearsed(entry)
        once, began_s = partial(self._once, entry, name, work), monotonic()
        if policy is None or policy.attempts == 1:
            found = await once()
        else:
            found = await try_by(
                policy,
                once,
                waiting=self._next_attempt,
                failed=partial(self._attempt_failed, entry, policy.attempts),
            )
        note, result = await self._journals.note(
            self._keys,
            entry,
            found,
            run=self._started.replay,
            lane=lane,
            checkpoint=checkpoint,
            inline_bytes=self._policy.inline_bytes,
            number=self._started.order.number(entry),
            about=(
                self._places.pop(entry, 0),
                round((monotonic() - began_s) * 1000),
                self._attempts[entry],
            ),
        )
        self._recorded[entry] = without_result(note)
        return result

    async def _once(self, entry: str, name: str, work: Callable[[], Any]) -> Any:
        # A scope for each attempt: steps inside of it have the same names in each.
        path = entry.partition(":")[2]
        self._attempts[entry] += 1
        attempt = f"{entry}!{self._attempts[entry]}"
        outer = _WORKING.get()
        depth = 1 if outer is None else outer.depth + 1
        scope = NameScope(f"{path}/", name=name, entry=entry, attempt=attempt, depth=depth)
        token = _WORKING.set(scope)
        self._running.begin(entry, self._attempts[entry])
        try:
            with telemetry.stepping(name):
                outcome = work()
                return await outcome if isawaitable(outcome) else outcome
        finally:
            _WORKING.reset(token)
            self._running.end(entry)

    async def _next_attempt(self, attempt: Awaitable[T]) -> T:
        """Wait for the next attempt. A checkpoint from its first moment to its last."""
        waiting = asyncio.ensure_future(attempt)
        over = asyncio.ensure_future(self._inbox.until_over())
        try:
            await asyncio.wait({waiting, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
            found = await waiting
        finally:
            waiting.cancel()
            over.cancel()
            await asyncio.gather(waiting, over, return_exceptions=True)
        await self._inbox.checkpoint()
        return found

    async def _attempt_failed(self, entry: str, most: int, number: int, error: Exception) -> None:
        kind = type(error).__name__
        task_id = self._keys.task_id
        log.warning("%s of task %s: attempt %d of %d: %s", entry, task_id, number, most, kind)
        content = {"notice": "attempt_failed", "entry": entry, "attempt": number, "of": most}
        await self.report(f"{entry}!failed", content | {"error": kind})

    def _show_running(self, steps: list[Shown]) -> None:
        """Write down what runs now. The run does not depend on it."""
        mark = self._started.held.fence.mark
        sent = self._store.base.scripts.begin_note_running(
            self._keys, mark=mark, steps=write_running(steps)
        )
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def report(self, lane: str, content: dict[str, Any]) -> None:
        """Publish a notification, in a lane of its own. The run does not depend on it."""
        with suppress(BackendError):
            await self._emitter.emit(
                self._started.replay.named(lane), UpdateType.NOTIFICATION, content
            )


def effect_id(namespace: str, session_id: str, task_id: str, entry: str) -> str:
    """Return the effect id of a step: equal in every attempt, and unique to the step. 128 bits."""
    return codec.fingerprint("effect", namespace, session_id, task_id, entry)


async def _awaited(attempt: Awaitable[T]) -> T:
    return await attempt


def _caller() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return threading.current_thread()
