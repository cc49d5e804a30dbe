"""The interface of a handler: publish updates, take steering, run steps, pause, spawn children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from redis_state.errors import InvalidField, InvalidTransition, TokenUnknown
from redis_state.models import TaskState, TaskStatus, UpdateType
from redis_state.models.attributes import AttributeValue, check_attributes
from redis_state.scripts import Fence
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.handler.messaging import ContextMessaging, RunMessaging
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.queue.control import take
from redis_state.worker.queue.limits import Rate
from redis_state.worker.tasks.child_requests import ChildTask, SpawnOptions, SpawnRequest
from redis_state.worker.tasks.children import ChildTasks, result_of
from redis_state.worker.tasks.execution.compensation import Compensations
from redis_state.worker.tasks.execution.emitter import Emitter
from redis_state.worker.tasks.execution.inbox import Inbox, refuse_in_undo
from redis_state.worker.tasks.execution.patches import VERSION
from redis_state.worker.tasks.execution.steps import StepPolicy, Steps
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.forms import PauseForm
from redis_state.worker.tasks.waitpoints.pause_model import (
    Decision,
    Pause,
    PauseOptions,
    PauseRequest,
    asks,
    decision_of,
    pause_token,
)
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses

R = TypeVar("R")
P = ParamSpec("P")

_DECIDED = "decided:"
_SHORT_SLEEP = timedelta(seconds=1)


class TaskPaused(BaseException):
    """The task is paused. The run ends here, and a later one begins at the start of the handler."""


class TaskHandedBack(Exception):
    """A handler gives its task back, because something it needs is missing. The task is PENDING
    again, its slot is free, and a later run begins at the handler's start.
    """


class TaskContext(ContextMessaging):
    """One run of a task. After a pause or a crash the handler runs again from its start.

    Recorded work is not repeated. A `step` returns its stored result, a `pause` its decision. The
    inbox returns what was taken from it at the same place. A published update is not published
    again. Steps and pauses are found by their name, and by their order among those of one name.
    Updates are found by their order among those of one kind in one asyncio task.
    """

    def __init__(
        self,
        store: RedisStateStore,
        transitions: TaskTransitions,
        started: StartedRun,
        inbox: Inbox,
        worker: str,
        *,
        steps: StepPolicy | None = None,
        child_tasks: ChildTasks | None = None,
        compensations: Compensations | None = None,
    ) -> None:
        self.store: RedisStateStore = store
        self.inbox: Inbox = inbox
        self.worker = worker
        self._transitions = transitions
        self._started = started
        self._steps = Steps(store, started, inbox, steps or StepPolicy())
        self._pausing = TaskPauses(store)
        self._emitter = Emitter(store, started)
        inbox.lane = self._steps.lane
        self._children = child_tasks or ChildTasks(store)
        self._talk = RunMessaging(store, started, inbox, self._children.queue)
        self._pauses: dict[str, dict[str, Any]] = {
            entry: note for entry, note in started.journal.items() if entry.startswith("pause:")
        }
        for entry in [name for name in started.journal if name.startswith(_DECIDED)]:
            self._pauses[entry.removeprefix(_DECIDED)] = started.journal[entry]
        self._decided_before = {
            entry for entry, note in self._pauses.items() if note["state"] == "decided"
        }
        self._tokens: dict[str, str] = {}
        self._compensations = compensations or Compensations(store, started, inbox)
        self._steps.failed = self._compensations.step_failed
        self._forms: dict[str, PauseForm | None] = {}

    @property
    def task(self) -> TaskState:
        """The task at the beginning of this run."""
        return self._started.state

    @property
    def input(self) -> Any:
        """The input that the task was submitted with."""
        return self._started.input

    @property
    def epoch(self) -> int:
        """The number of this run: at least the server's time in ms, and later runs' are greater."""
        return self._started.held.epoch

    @property
    def fence(self) -> Fence:
        """The fence for the handler's own writes to the store: the server refuses them after a
        takeover.
        """
        return self._started.held.fence

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The attributes that the task has now."""
        return dict(self._started.attributes)

    @property
    def attempt(self) -> int:
        """The number of starts of the task, this one included."""
        return self._started.attempts

    async def checkpoint(self) -> None:
        """Apply steering: wait while a PAUSE event is in force. Errors: TaskCancelled."""
        await self.inbox.checkpoint()

    async def progress(
        self, message: str, *, step: int | None = None, total: int | None = None, **details: Any
    ) -> None:
        """Publish the task's progress. A checkpoint. Errors: TaskCancelled, LeaseLost."""
        await self.emit(
            UpdateType.PROGRESS, {"message": message, **details}, step=step, total=total
        )

    async def thinking(self, text: str) -> None:
        """Publish a thought of the agent. A checkpoint."""
        await self.emit(UpdateType.THINKING, {"text": text})

    async def tool_call(self, name: str, arguments: Any = None, result: Any = None) -> None:
        """Publish a tool call. A checkpoint."""
        content = {"tool": name, "arguments": arguments, "result": result}
        await self.emit(UpdateType.TOOL_CALL, content)

    async def result(self, content: Any) -> None:
        """Publish a result, or a part of it. The task's own result is what its handler returns."""
        await self.emit(UpdateType.RESULT, content)

    def set_attributes(
        self, attributes: Mapping[str, AttributeValue | None]
    ) -> Coroutine[Any, Any, None]:
        """Set attributes of the task, by which `TaskClient.find` finds it; None removes one.

        Once per task: a later run passes the calls that an earlier one has made. Calls are counted
        when they are made, like the steps of one name. Others are kept. A checkpoint.

        Errors: InvalidField for a name or a value that cannot be one, or for too many;
        TaskCancelled, LeaseLost.
        """
        changes = {name: value for name, value in attributes.items() if value is not None}
        checked = check_attributes("attributes", changes)
        gone = attributes.keys() - checked.keys()
        return self._set_attributes(self._steps.ask("attributes", "set"), checked, gone)

    async def emit(
        self,
        kind: UpdateType,
        content: Any,
        *,
        step: int | None = None,
        total: int | None = None,
        key: str | None = None,
    ) -> None:
        """Append an update of any kind to the session. A checkpoint.

        Each update is published once per task. The n-th update of a kind in one asyncio task of the
        handler is the n-th in each run. Times and random ids in it do not matter. A handler that
        resumes from a state of its own does not repeat its updates. It names each by a ``key``: an
        update is published once per key.

        Errors: TaskCancelled; LeaseLost if another worker has taken the task over.
        """
        kind = UpdateType(kind)
        lane = self._steps.lane_of(key, kind, content)
        await self.inbox.checkpoint(updates=0 if lane.repeats(kind.value) else 1)
        await self._emitter.emit(lane, kind, content, step=step, total=total)

    @overload
    def step(
        self, name: str, work: Callable[P, Awaitable[R]], *arguments: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(
        self, name: str, work: Callable[P, R], *arguments: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(
        self, name: str, work: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Coroutine[Any, Any, Any]: ...

    def step(
        self, name: str, work: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """Run some work once per task and record its result; later runs return the record.

        The result is returned as JSON keeps it, in this run too. A crash between the work and its
        record repeats the work: give effects outside an `effect_id`. The name is counted by this
        call, before it is awaited. It belongs to the asyncio task that makes the call: concurrent
        parts of a handler each need names of their own, or a `branch`. A checkpoint.

        Errors: the work's own, after the last attempt if it is `retried`; InvalidField for a name
        that two asyncio tasks use; CorruptState if a recorded result is damaged; TaskCancelled,
        LeaseLost.
        """
        return self._steps.do(name, work, arguments, options)

    def checkpoint_step(
        self, name: str, work: Callable[P, Any], *arguments: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, Any]:
        """Run a step and mark its record as a checkpoint among the snapshots. Like `step`."""
        return self._steps.do(name, work, arguments, options, checkpoint=True)

    async def keyed_step(
        self, name: str, key: str, work: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Run a step that is found by its ``key``, in whatever order the steps are called.

        Use it where a model, for example, decides the order of its tools, with the arguments as the
        key. A second call with the same key returns the recorded result, in this run too and from
        any asyncio task. Otherwise like `step`.
        """
        return await self._steps.do_keyed(name, key, work, arguments, options)

    def effect_id(self, name: str | None = None) -> str:
        """Return the idempotency key of a step's effects: the same in every attempt and every run.

        It is the key of the next step with this name. In a step's work it is that step's own, also
        without a name. Another task, name or occurrence has another key. The key is made from the
        ids alone: a task that is submitted again under an old id has the old keys.
        """
        return self._steps.effect_id(name)

    def patched(self, name: str) -> bool:
        """Return whether new code may run at this point: False if the task passed it under old
        code.

        True in a new task, and in one that has not come to this point. The first call of a name
        decides for the task, or for a `branch` of it. Every later call gets the same answer, in
        this run and in all later ones: it is recorded before the next checkpoint is passed. So the
        calls of a loop agree. Call it in the handler itself or in a branch: another asyncio task
        may be given False without need. Errors: InvalidField.
        """
        return self._steps.patched(name)

    def retire_patch(self, name: str) -> None:
        """Mark the point of a patch whose old path is removed from the code.

        Errors: HandlerChanged if this task needs the old path, because it passed the point under
        old code; InvalidField.
        """
        self._steps.retire_patch(name)

    def on_failure(
        self,
        undo: Callable[..., Any],
        *arguments: Any,
        name: str | None = None,
        on_cancel: bool = False,
    ) -> None:
        """Register a compensation: ``undo(*arguments)`` runs if the task fails after this call.

        A task fails when its handler raises, or a guard or its time limit stops it. Then the
        registered compensations run, the last one first, before the task is FAILED. With
        ``on_cancel`` they also run before it is CANCELLED. Each ends once, also if workers die in
        between. One that is interrupted runs again: `effect_id` in it is its key.

        An undo is retried as its `retried` says, or as the worker's steps are, or three times. One
        that fails for good is reported, and the others still run. It cannot pause or join.

        A later run finds it by its ``name`` (the function's own by default) and its order among
        those of that name. Call it in the handler itself or in a branch, not in a step's work.
        Register before the step if the effect may have happened without its record. It does not run
        at a pause, a hand-off or a lost lease, nor for a dead letter, whose workers died.

        Errors: InvalidField, also for a name that two asyncio tasks use.
        """
        self._compensations.register(self._steps, undo, arguments, name=name, on_cancel=on_cancel)

    async def note_version(self, version: str | None) -> None:
        """Record the version of the handler's code, before it begins. Called by the worker."""
        await self._steps.record(VERSION, codec.encode(version))

    def begin(self, handling: asyncio.Task[Any]) -> None:
        """Begin the run in this asyncio task. Called by the worker before the handler.

        Errors: TaskCancelled, LeaseLost.
        """
        if not self._compensations.begin(self._steps, handling):
            self.inbox.raise_if_over()

    def branch(self, name: str) -> Self:
        """Return a context that counts the names of steps and pauses for itself.

        Use it for concurrent parts of a handler with the same names, whose order may differ in each
        run. All else, such as steering, is shared with this context.
        """
        made = copy(self)
        made._steps = self._steps.branch(name)  # noqa: SLF001 - a copy of this very object
        return made

    async def check_changed(self) -> None:
        """Report, or fail, if earlier runs recorded an entry that this run did not use.

        Called for each handler that returns. Errors: HandlerChanged, by the worker's policy.
        """
        await self._steps.check_changed()

    def unused(self) -> list[str]:
        """List the entries of earlier runs that this run has not used."""
        return self._steps.unused()

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return the asyncio tasks of the handler that still run, without the one that asks."""
        return self._steps.unfinished()

    def open_pause(
        self,
        reason: str = "await_input",
        payload: Any = None,
        *,
        reveal: bool = True,
        **options: Unpack[PauseOptions],
    ) -> Coroutine[Any, Any, Pause]:
        """Open a pause without waiting for it. From now on it can be decided.

        A later run gets the same pause. It is found by its ``key``, else by its ``name`` (the
        reason by default) and its order among those of that name. Its content stays as first given.
        A name is counted by this call, and belongs to the asyncio task that makes it, as in `step`.

        The CHECKPOINT update carries the pause's public id. The text of the token is not stored.
        With ``reveal=False`` only the token decides, and the handler sends it itself.

        ``timeout`` is `task_pause_ttl` by default, `active_task_ttl` at most. When it expires,
        ``on_timeout`` applies: ``"fail"`` raises PauseTimeout where the handler waits, ``"reject"``
        rejects, ``"resume"`` approves with ``default``. A checkpoint.

        ``schema`` is the form of an approval's value: a JSON schema of the draft 2020-12, or a type
        that pydantic understands, as which the handler gets the value. A value that does not fit is
        refused before the decision. A rejection may have any value.

        ``of`` names the actors who decide: one of them, or as many ``approvals`` as are given, one
        vote each. Then ``rejections`` reject it, by default so many that the approvals are out of
        reach. ``escalate`` names further deciders, after some time. The decision has the votes.

        Errors: InvalidField, also for a name that two asyncio tasks use; ConfigError for a JSON
        schema without the extra ``forms``; TaskCancelled, LeaseLost.
        """
        return self._open_pause(*self._ask_pause(reason, payload, options, reveal=reveal))

    async def wait_for(self, pause: Pause | str) -> Decision:
        """Return a pause's decision; if there is none yet, end the run and wait for it.

        Take what `open_pause` returned, or its token. The worker is free while the task waits. The
        decision starts the next run, on any worker, in which this call returns. A checkpoint.

        Errors: PauseTimeout; InvalidDecision if the value breaks a rule of the pause's type that
        its JSON schema cannot say, such as a validator's; TokenUnknown if this task has not opened
        the pause; TaskCancelled, LeaseLost.
        """
        refuse_in_undo("pause")
        token = pause.token if isinstance(pause, Pause) else pause
        entry = self._entry_of(token)
        await self.checkpoint()
        if self._pauses[entry]["state"] != "decided":
            await self._steps.rehearsed(f"the decision of {entry}")
            with self._ending_if_paused():
                note = await self._pausing.wait(self._started, entry)
            if note is None:
                raise self._end_paused()
            self._pauses[entry] |= note
        await self._learn_decision(entry)
        return decision_of(entry, self._pauses[entry], self._forms.get(entry))

    def pause(
        self, reason: str = "await_input", payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Open a pause and wait for its decision. See `open_pause` and `wait_for`."""
        return self._pause(*self._ask_pause(reason, payload, options))

    def approval(
        self, question: str, payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Pause until the question is approved or rejected. Like `pause`."""
        content = {"question": question, "details": codec.plain(payload)}
        return self.pause("await_approval", content, **options)

    async def sleep(self, delay: timedelta, *, name: str = "sleep") -> None:
        """Sleep, for seconds or for months. The worker is free meanwhile.

        A later run continues, in any worker. A sweeper finds the end of the time, within a second
        or so. A second or less is slept in this run. A checkpoint. Errors: InvalidField;
        TaskCancelled, LeaseLost.
        """
        is_delay = isinstance(delay, timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_delay or delay < timedelta(0):
            raise InvalidField("delay", "needs a timedelta from 0")
        if delay <= _SHORT_SLEEP:
            await self._steps.do(name, asyncio.sleep, (delay.total_seconds(),), {})
            return
        await self.pause("sleep", name=name, timeout=delay, on_timeout="resume")

    async def take(self, name: str, rate: Rate, *, cost: int = 1) -> None:
        """Take from a rate that all tasks of the namespace share, and wait until it is there.

        For calls of a model, say: ``await ctx.take("model", Rate(60, timedelta(minutes=1)))``. All
        callers give a name the same rate. A wait of more than a second frees the worker. It is
        taken once per call and task: a later run does not take it again. A checkpoint. Errors:
        InvalidField for a cost above the rate; TaskCancelled, LeaseLost.
        """
        entry = f"take {name}"
        while wait_ms := await self._steps.do(entry, self._take, (name, rate, cost), {}):
            await self.sleep(timedelta(milliseconds=wait_ms), name=f"wait for {name}")

    async def _take(self, name: str, rate: Rate, cost: int) -> int:
        """Take from a rate; return in how many ms to try again, if that is not soon."""
        queue = self._children.queue
        if queue is None:
            raise InvalidField("rate", "is kept by the queue, and this run has none")
        wait_ms = await take(queue, name, rate, cost)
        if 0 < wait_ms <= _SHORT_SLEEP / timedelta(milliseconds=1):
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = await take(queue, name, rate, cost)
        return wait_ms

    def spawn(
        self,
        handler: str,
        task_input: Any = None,
        *,
        name: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, ChildTask]:
        """Spawn a child task for another handler, in this session; return its handle.

        A child is spawned once per task. A later run gets the same child, found by its ``name``
        (the handler's by default) and its order among those of that name. The name is counted by
        this call, before it is awaited. By default the child waits in this task's queue, with its
        priority. It is cancelled with this task, unless ``isolate`` is given. A task may end before
        its children, which then continue. A checkpoint.

        Errors: InvalidField, also for a name that two asyncio tasks use; TaskCancelled, LeaseLost.
        """
        requested = SpawnRequest.read(self._started, handler, task_input, options)
        entry = self._steps.ask("child", handler if name is None else name)
        self._steps.check_same(entry, requested.asks)
        return self._spawn(entry, requested)

    def join(self, child: ChildTask) -> Coroutine[Any, Any, Any]:
        """Return a child's result; if the child is not terminal, end the run and wait for it.

        The worker is free while the task waits. The child's end starts the next run. The end is
        recorded like a step's result. A checkpoint.

        Errors: TaskFailed and TaskWasCancelled with the child's reason; InvalidField for a child of
        another task; TaskCancelled, LeaseLost.
        """
        refuse_in_undo("child")
        if child.parent_id != self.task.task_id or child.session_id != self.task.session_id:
            raise InvalidField("child", "is no child of this task")
        return self._join(child, self._steps.do(f"join {child.place}", self._end_of, (child,), {}))

    async def _learn_decision(self, entry: str) -> None:
        """Record a decision that arrived during this run, before the handler acts on it.

        Another process wrote the decision. A rollback of the server may lose it, and keep what this
        run does next.
        """
        learned = _DECIDED + entry
        if learned in self._started.journal or entry in self._decided_before or self._rehearses:
            return
        self._decided_before.add(entry)
        note, payloads = self._pauses[entry], self.store.base.payloads
        await self._steps.record(learned, payloads.write(note))

    async def _set_attributes(
        self, entry: str, changes: Mapping[str, AttributeValue], gone: AbstractSet[str]
    ) -> None:
        await self.checkpoint()
        if entry in self._started.journal or self._rehearses:
            return
        kept = {name: value for name, value in self.attributes.items() if name not in gone}
        attributes = check_attributes("attributes", kept | dict(changes))
        lane = self._steps.lane()
        await self._transitions.set_attributes(self._started, entry, attributes, lane)

    def _ask_pause(
        self, reason: str, payload: Any, options: PauseOptions, *, reveal: bool = True
    ) -> tuple[str, PauseRequest]:
        """Assign a pause its number now, in call order."""
        refuse_in_undo("pause")
        requested = PauseRequest.read(self.store.settings, reason, payload, options, reveal=reveal)
        key = options.get("key")
        if key is not None:
            entry = self._steps.ask_keyed(f"pause:{key}#key")
        else:
            entry = self._steps.ask("pause", requested.name)
            self._steps.check_same(entry, asks(requested.reason, requested.payload))
        self._forms[entry] = requested.form
        return entry, requested

    async def _open_pause(self, entry: str, requested: PauseRequest) -> Pause:
        with self._calling(entry):
            await self.checkpoint()
            note = self._pauses.get(entry)
            if note is None:
                await self._steps.check_call(entry)
                await self._steps.rehearsed(entry)
            if (note is None or note["state"] != "decided") and not self._rehearses:
                with self._ending_if_paused():
                    self._pauses[entry] = await self._pausing.open(
                        self._started,
                        entry,
                        requested,
                        self._steps.lane(),
                        place=self._steps.place_of(entry),
                    )
        return Pause(requested.name, self._token(entry))

    async def _pause(self, entry: str, requested: PauseRequest) -> Decision:
        return await self.wait_for(await self._open_pause(entry, requested))

    async def _spawn(self, entry: str, requested: SpawnRequest) -> ChildTask:
        with self._calling(entry):
            await self.checkpoint()
            recorded = self._started.journal.get(entry)
            if recorded is None:
                await self._steps.check_call(entry)
                await self._steps.rehearsed(entry)
            elif self._rehearses:
                return ChildTask(
                    self.task.session_id,
                    recorded["task"],
                    self.task.task_id,
                    entry.partition(":")[2],
                )
            with self._ending_if_paused():
                return await self._children.spawn(
                    self._started,
                    entry,
                    requested,
                    self._steps.lane(),
                    place=self._steps.place_of(entry),
                )

    async def _join(self, child: ChildTask, end: Coroutine[Any, Any, Any]) -> Any:
        return result_of(child.session_id, child.task_id, await end)

    async def _end_of(self, child: ChildTask) -> dict[str, Any]:
        with self._ending_if_paused():
            ended = await self._children.join(self._started, child.task_id)
        if ended is None:
            raise self._end_paused()
        return ended

    def _token(self, entry: str) -> str:
        token = pause_token(self._started, entry)
        self._tokens[token] = entry
        return token

    def _entry_of(self, token: str) -> str:
        if token not in self._tokens:
            for entry in self._pauses:
                self._token(entry)
        if token not in self._tokens:
            raise TokenUnknown(expired=False)
        return self._tokens[token]

    @property
    def _rehearses(self) -> bool:
        return self._started.replay.rehearsal is not None

    @contextmanager
    def _calling(self, entry: str) -> Generator[None, None, None]:
        """End a call when it has returned or failed, see `CallOrder`."""
        try:
            yield
        finally:
            self._started.order.end(entry)

    @contextmanager
    def _ending_if_paused(self) -> Generator[None, None, None]:
        """Treat a pause by another coroutine of this run as the end of the run."""
        try:
            yield
        except InvalidTransition as denied:
            if denied.current != TaskStatus.PAUSED.value:
                raise
            raise self._end_paused() from None

    def _end_paused(self) -> TaskPaused:
        telemetry.event("pause")
        paused = TaskPaused()
        self.inbox.close(paused)
        return paused
