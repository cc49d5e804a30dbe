"""The steps of one run: their records, and their retries. Names: `names`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property, partial
from inspect import isawaitable
from time import monotonic
from typing import Any, NoReturn, Protocol, TypeVar

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.tasks.execution.code_changes import CodeChanges, Patches
from redis_state.worker.tasks.execution.emitter import Emitter
from redis_state.worker.tasks.execution.exits import Exited, returned
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.names import WORKING, NameScope
from redis_state.worker.tasks.execution.open_steps import OpenSteps
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.execution.retries import Retried, RetryPolicy, try_by
from redis_state.worker.tasks.execution.running import RunningSteps, Shown, write_running
from redis_state.worker.tasks.recorded.journal import Journals, failures_of, is_inside
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.recorded.rehearsal import error_again
from redis_state.worker.tasks.started import StartedRun

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class _StepFailed(Protocol):
    """What is called with a step that has failed."""

    def __call__(self, entry: str, error: Exception, place: int | None, *, keyed: bool) -> None:
        """Remember it."""


class Steps(CodeChanges):
    """The steps of one run, or of one branch of its handler."""

    def __init__(
        self, store: RedisStateStore, started: StartedRun, inbox: Inbox, policy: StepPolicy
    ) -> None:
        super().__init__(started)
        self._store = store
        self._inbox = inbox
        self._policy = policy
        self._journals = Journals(store.base)
        self.emitter: Emitter = Emitter(store, started)
        self._keys = store.tasks.keys(started.state.session_id, started.state.task_id)
        self._recorded = dict(started.journal)
        self._doing: dict[str, asyncio.Lock] = {}
        self._attempts: dict[str, int] = {}
        self._running = RunningSteps(self._show_running)
        self._patches = Patches(started, inbox)
        # Those that work now, in all branches.
        self.open: OpenSteps = OpenSteps(inbox, self._root)
        # What earlier runs have seen fail, and their handlers have handled.
        self._failures = failures_of(started.journal)
        # Called with each step that has failed; it is kept for later runs if it has a place.
        self.failed: _StepFailed = _ignore

    @cached_property
    def _traced(self) -> bool:
        """Whether a tracer was set at the first step. One set later gets later runs."""
        return telemetry.may_trace()

    def effect_id(self, name: str | None) -> str:
        """Return the key of a step's effects. See `TaskContext.effect_id`."""
        working = WORKING.get()
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
        entry, lane = self.ask_step(name)
        policy = work.policy if isinstance(work, Retried) else self._policy.retry
        once = partial(work, *arguments, **options)
        return self._do(entry, name, once, policy, lane, checkpoint=checkpoint)

    async def do_keyed(
        self,
        name: str,
        key: str,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Do a step that is found by its key; who asks for it meanwhile waits for its result."""
        key = f"{key}"
        entry = f"step:{self._here.keyed('step', name, key)}"
        if "#" in key:
            entry = self._keyed_before(entry, name, key)
        lane = self.use(entry)
        policy = work.policy if isinstance(work, Retried) else self._policy.retry
        async with self._doing.setdefault(entry, asyncio.Lock()):
            once = partial(work, *arguments, **options)
            return await self._do(entry, name, once, policy, lane, keyed=True)

    def _keyed_before(self, entry: str, name: str, key: str) -> str:
        """Return the entry of a key in which an earlier version of the library recorded it."""
        before = f"step:{self._here.keyed_before('step', name, key)}"
        if before not in self._recorded or entry in self._recorded:
            return entry
        # The same text is the place of what was done inside of another key's step.
        start = before[: -len(key)]
        others = (one for one in {*self._recorded, *self._requested} if one.startswith(start))
        return entry if any(is_inside(before, other) for other in others) else before

    def let_go(self) -> None:
        """Drop what refers back to the run, see `Inbox.let_go`."""
        self._running.stop()
        self.failed = _ignore
        self._root.let_go()

    @property
    def in_work(self) -> bool:
        """Whether the caller is the work of a step, which is done again until it is recorded."""
        return WORKING.get() is not None

    async def record(self, entry: str, value: bytes) -> None:
        """Record what this run has learned. Errors: LeaseLost, JournalRewound."""
        run = self._started.replay
        await self._journals.record(self._keys, entry, value, run=run, lane=self.lane())

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return the asyncio tasks of the handler that still run, without the one that asks."""
        found = {*self._started.replay.asyncio_tasks(), *self.open.callers.values()}
        own = asyncio.current_task()
        return {task for task in found if not (task is None or task is own or task.done())}

    def ask_undo(self, name: str) -> str:
        """Count a compensation's name, and return its place. Errors: InvalidField."""
        if WORKING.get() is not None:
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

    async def _do(
        self,
        entry: str,
        name: str,
        work: Callable[[], Any],
        policy: RetryPolicy | None,
        lane: Lane,
        *,
        checkpoint: bool = False,
        keyed: bool = False,
    ) -> Any:
        steps = self.open
        caller = steps.callers[entry] = asyncio.current_task()
        # One coroutine, as far as it goes: each reply would have to pass through each of several.
        try:
            note = self._recorded.get(entry)
            again = note is not None or entry in self._failures
            waited = self._inbox.checking(steps=0 if again else 1)
            if waited is not None:
                await waited
            if note is not None:
                return await self._journals.result(self._keys, entry, note)
            if entry in self._failures:
                self._fail_again(entry)
            started = self._started
            if started.order.missed_at(entry) or started.replay.rehearsal is not None:
                await self.check_call(entry)
                await self.rehearsed(entry)
            if steps.ends:
                await steps.passable()
            began_s = monotonic()
            if policy is None or policy.attempts == 1:
                found = await self._once(entry, name, work, caller)
            else:
                found = await self._tried(entry, name, work, policy, caller)
            self._recorded[entry], result = await self._journals.record_step(
                self._keys,
                entry,
                found,
                run=started.replay,
                lane=lane,
                checkpoint=checkpoint,
                inline_bytes=self._policy.inline_bytes,
                number=started.order.number(entry),
                about=(
                    self._places.pop(entry, 0),
                    round((monotonic() - began_s) * 1000),
                    self._attempts[entry],
                ),
            )
        except Exception as error:
            # In the work of a step it is that step's, unless its key finds it in any attempt.
            working = WORKING.get()
            outermost = entry if working is None else working.entries[0]
            kept = keyed or working is None
            place = self.place_of(outermost) if kept else None
            self.failed(entry, error, place, keyed=keyed)
            raise
        else:
            return result
        finally:
            steps.callers.pop(entry, None)
            if steps.watched:
                steps.move()
            self._started.order.end(entry)
            # An error refers to this frame, and its asyncio task to the error.
            del caller

    def _fail_again(self, entry: str) -> NoReturn:
        """Raise the error of a step that failed in an earlier run. Errors: PayloadUnreadable."""
        note, of = self._failures.pop(entry), f"task {self._keys.task_id!r}"
        parts = [note["error"], note.get("state")]
        (kind, text), state = self._store.base.payloads.need_within(parts, of=of, field=entry)
        raise error_again(kind, text, state)

    async def _tried(
        self,
        entry: str,
        name: str,
        work: Callable[[], Any],
        policy: RetryPolicy,
        caller: object,
    ) -> Any:
        return await try_by(
            policy,
            partial(self._once, entry, name, work, caller),
            waiting=self._next_attempt,
            failed=partial(self._attempt_failed, entry, policy.attempts),
        )

    async def _once(
        self, entry: str, name: str, work: Callable[[], Any], caller: object = None
    ) -> Any:
        # A scope for each attempt: steps inside of it have the same names in each.
        path = entry.partition(":")[2]
        number = self._attempts[entry] = self._attempts.get(entry, 0) + 1
        attempt = f"{entry}!{number}"
        working = WORKING.get()
        outer = () if working is None else working.entries
        scope = NameScope(
            f"{path}/", home=caller, name=name, entry=entry, attempt=attempt, outer=outer
        )
        token = WORKING.set(scope)
        self._running.begin(entry, number)
        try:
            if self._traced:
                with telemetry.stepping(name):
                    outcome = work()
                    return returned(await outcome if isawaitable(outcome) else outcome)
            outcome = work()
            return returned(await outcome if isawaitable(outcome) else outcome)
        except (SystemExit, KeyboardInterrupt) as error:
            if self.in_own_task:
                raise
            # asyncio would end the whole worker for it.
            raise Exited.by(error) from error
        finally:
            WORKING.reset(token)
            self._running.end(entry)
            del caller, scope  # as in `_do`

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
        log.warning("%r of task %r: attempt %d of %d: %s", entry, task_id, number, most, kind)
        content = {"notice": "attempt_failed", "entry": entry, "attempt": number, "of": most}
        await self.report(f"{entry}!failed", content | {"error": kind})

    def _show_running(self, steps: list[Shown]) -> None:
        """Write down what runs now. The run does not depend on it."""
        mark = self._started.held.fence.mark
        sent = self._store.base.scripts.begin_record_running(
            self._keys, mark=mark, steps=write_running(steps)
        )
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())


def effect_id(namespace: str, session_id: str, task_id: str, entry: str) -> str:
    """Return the effect id of a step: equal in every attempt, and unique to the step. 128 bits."""
    return codec.fingerprint("effect", namespace, session_id, task_id, entry)


def _ignore(entry: str, error: Exception, place: int | None, *, keyed: bool) -> None:
    """Do nothing about a step that has failed."""


async def _awaited(attempt: Awaitable[T]) -> T:
    return await attempt
