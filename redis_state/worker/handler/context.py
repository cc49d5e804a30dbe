"""The interface of a handler: publish updates, take steering, run steps, pause, spawn children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Any, ParamSpec, Self, TypeVar, overload

from redis_state.models import UpdateType
from redis_state.models.attributes import AttributeValue, check_attributes
from redis_state.scripts import Fence
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.handler.children import ContextChildren
from redis_state.worker.handler.messaging import ContextMessaging, RunMessaging
from redis_state.worker.handler.pauses import DECIDED
from redis_state.worker.handler.rates import ContextRates
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.children.children import ChildTasks
from redis_state.worker.tasks.execution.code_changes import VERSION
from redis_state.worker.tasks.execution.compensation import Compensations
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.execution.steps import Steps
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.waitpoints.forms import PauseForm

R = TypeVar("R")
P = ParamSpec("P")


class TaskContext(ContextMessaging, ContextRates, ContextChildren):
    """One run of a task. After a pause or a crash the handler runs again from its start.

    Recorded work is not repeated. A `step` returns its stored result, a `pause` its decision. The
    inbox returns what was taken from it at the same place. A published update is not published
    again. Steps and pauses are found by their name, and by their order among those of one name.
    Updates are found by their order among those of one kind in one asyncio task.
    """

    def __init__(
        self,
        store: RedisStateStore,
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
        self._started = started
        self._steps = Steps(store, started, inbox, steps or StepPolicy())
        inbox.lane = self._steps.lane
        self._children = child_tasks or ChildTasks(store)
        self._talk = RunMessaging(store, started, inbox, self._children.queue)
        self._pauses: dict[str, dict[str, Any]] = {
            entry: note for entry, note in started.journal.items() if entry.startswith("pause:")
        }
        for entry in [name for name in started.journal if name.startswith(DECIDED)]:
            self._pauses[entry.removeprefix(DECIDED)] = started.journal[entry]
        self._decided_before = {
            entry for entry, note in self._pauses.items() if note["state"] == "decided"
        }
        self._tokens: dict[str, str] = {}
        self._compensations = compensations or Compensations(store, started, inbox)
        self._steps.failed = self._compensations.step_failed
        self._forms: dict[str, PauseForm | None] = {}

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

    @property
    def retries(self) -> int:
        """The number of times that a retry has reopened the task."""
        return self._started.retries

    @property
    def forked(self) -> bool:
        """Whether the task is a fork: what is recorded of it began as another task's."""
        return self._started.forked

    @property
    def in_turn(self) -> bool:
        """Whether the task runs in turn: no other such task of its session runs meanwhile."""
        return self._started.in_turn

    async def progress(
        self, message: str, *, step: int | None = None, total: int | None = None, **details: Any
    ) -> None:
        """Publish the task's progress. A checkpoint. Errors: TaskCancelled, LeaseLost.

        ``step`` and ``total`` are the update's ``step_index`` and ``total_steps``, not part of its
        content.
        """
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
        await self._steps.emitter.emit(lane, kind, content, step=step, total=total)

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
        at a pause, a hand-off or a lost lease, nor for a dead letter.

        Errors: InvalidField, also for a name that two asyncio tasks use.
        """
        self._compensations.register(self._steps, undo, arguments, name=name, on_cancel=on_cancel)

    async def record_version(self, version: str | None) -> None:
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

    def keyed_branch(self, name: str, key: str, *, partial: bool = False) -> Self:
        """Return a branch that its ``key`` finds, for a handler that resumes from its own state.

        Each call counts the names in it from the start. So work that is repeated under its key
        finds its records. Call it once for each such piece of work. Of a ``partial`` one a run may
        leave out what earlier runs recorded, and has not changed by that. Errors: InvalidField.
        """
        made = copy(self)
        made._steps = self._steps.keyed_branch(name, key)  # noqa: SLF001 - as in `branch`
        if partial:
            made._steps.pass_own(self._started.journal)  # noqa: SLF001 - as in `branch`
        return made

    def pass_keyed_steps(self, name: str) -> None:
        """Take the steps of earlier runs that have this name and a key as used.

        For steps whose keys a later run, or a fork, need not have. Errors: InvalidField.
        """
        self._steps.pass_keyed(name, self._started.journal)

    def pass_keyed_branches(self) -> None:
        """Take what earlier runs did in keyed branches as used. Call it first in the handler.

        For a handler that resumes from a state of its own: it does not repeat all of it, so the
        order of its calls is not checked.
        """
        self._steps.pass_keyed_branches(self._started.journal)

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

    def working(self) -> set[asyncio.Task[Any]]:
        """Return the asyncio tasks that do a step now."""
        return {task for task in self._steps.open.callers.values() if task and not task.done()}

    def let_go(self) -> None:
        """Drop what refers back to the run, see `Inbox.let_go`. Called by the worker at its end."""
        self._steps.let_go()

    async def _set_attributes(
        self, entry: str, changes: Mapping[str, AttributeValue], gone: AbstractSet[str]
    ) -> None:
        await self.checkpoint()
        if entry in self._started.journal or self._rehearses:
            return
        lane = self._steps.lane()
        await TaskChanges(self.store).set_attributes(self._started, entry, changes, gone, lane)
