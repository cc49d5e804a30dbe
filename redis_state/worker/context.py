"""What a handler has in its hands: say what it does, be steered, step durably, pause."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from copy import copy
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from redis_state.errors import InvalidField, InvalidTransition, TokenUnknown
from redis_state.models import TaskState, TaskStatus, UpdateType
from redis_state.scripts import Fence
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.observe import tracing as telemetry
from redis_state.worker.tasks.children import (
    ChildTask,
    ChildTasks,
    SpawnOptions,
    SpawnRequest,
    result_of,
)
from redis_state.worker.tasks.emitter import Emitter
from redis_state.worker.tasks.inbox import Inbox
from redis_state.worker.tasks.pause_model import (
    Decision,
    Pause,
    PauseOptions,
    PauseRequest,
    asks,
    decision_of,
    pause_token,
)
from redis_state.worker.tasks.pauses import TaskPauses
from redis_state.worker.tasks.steps import StepPolicy, Steps
from redis_state.worker.tasks.transitions import StartedRun, TaskTransitions

R = TypeVar("R")
P = ParamSpec("P")

_DECIDED = "decided:"


class TaskPaused(BaseException):
    """The task is paused: the run ends here, and a later one begins at the handler's start."""


class TaskHandedBack(Exception):
    """A handler gives its task back, for what it needs is not there: it is PENDING again, its slot
    is another task's, and a later run begins at the handler's start.
    """


class TaskContext:
    """One run of a task. After a pause or a crash a handler is run again from its start.

    What is recorded comes back instead of happening twice: a `step` returns its stored result, a
    `pause` its decision, the inbox what was taken from it at the same place, and an update that is
    published is not published again. Steps and pauses are found by their name and, among those of
    one name, by their order; updates by their order among those of their kind in one asyncio task.
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
        self._pauses: dict[str, dict[str, Any]] = {
            entry: note for entry, note in started.journal.items() if entry.startswith("pause:")
        }
        for entry in [name for name in started.journal if name.startswith(_DECIDED)]:
            self._pauses[entry.removeprefix(_DECIDED)] = started.journal[entry]
        self._decided_before = {
            entry for entry, note in self._pauses.items() if note["state"] == "decided"
        }
        self._tokens: dict[str, str] = {}

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
        """The number of this run: at least the server's time in ms, and later runs' are greater."""
        return self._started.held.epoch

    @property
    def fence(self) -> Fence:
        """What the handler's own writes to the store carry, to be refused after a takeover."""
        return self._started.held.fence

    @property
    def attempt(self) -> int:
        """How many times the task has been started, this time included."""
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

        Once per task: the n-th update of a kind that an asyncio task of the handler emits is the
        n-th in each run, whatever time or random id a replay writes into it. A handler that resumes
        from a state of its own, and so does not repeat its updates, names each by a ``key``: it is
        published once per key. Errors: TaskCancelled; LeaseLost if another worker has taken the
        task over.
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
        """Do some work once per task and note its result; later runs return what was noted.

        The result comes back as JSON keeps it, in this run too. A crash between the work and its
        note does the work again: give what has effects outside an `effect_id`. The name is counted
        by this call, before it is awaited, and belongs to the asyncio task that makes it; parts of
        a handler that run at once each need names of their own, or a `branch`. A checkpoint.
        Errors: the work's own, after the last attempt if it is `retried`; InvalidField for a name
        that two asyncio tasks use; CorruptState if a noted result is damaged; TaskCancelled,
        LeaseLost.
        """
        return self._steps.do(name, work, arguments, options)

    def checkpoint_step(
        self, name: str, work: Callable[P, Any], *arguments: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, Any]:
        """Do a step, and mark its note as a checkpoint among the task's snapshots. Like `step`."""
        return self._steps.do(name, work, arguments, options, checkpoint=True)

    async def keyed_step(
        self, name: str, key: str, work: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Do a step that later runs find by its ``key``, in whatever order they ask for it.

        For work whose order another decides: a model that calls tools, say, with the arguments as
        the key. Asked for again under its key, in this run too, it is not done again; several
        asyncio tasks may. Else like `step`.
        """
        return await self._steps.do_keyed(name, key, work, arguments, options)

    def effect_id(self, name: str | None = None) -> str:
        """Return the idempotency key of a step's effects: the same in every attempt and every run.

        It is that of the step that this name will be asked for next; in a step's work, that step's
        own, also without a name. Another task, name or occurrence has another key. It is made from
        the ids alone, so a task that is submitted anew under an old id has the old keys.
        """
        return self._steps.effect_id(name)

    def branch(self, name: str) -> Self:
        """Return a context that counts the names of steps and pauses for itself.

        For parts of a handler that run at once and use the same names, in an order that may be
        another in each run. Steering, and all else, is this context's.
        """
        made = copy(self)
        made._steps = self._steps.branch(name)  # noqa: SLF001 - a copy of this very object
        return made

    async def check_changed(self) -> None:
        """Say, or fail, if earlier runs noted what this one never asked for.

        Done for each handler that returns. Errors: HandlerChanged, if the worker's policy says so.
        """
        await self._steps.check_changed()

    def open_pause(
        self,
        reason: str = "await_input",
        payload: Any = None,
        *,
        reveal: bool = True,
        **options: Unpack[PauseOptions],
    ) -> Coroutine[Any, Any, Pause]:
        """Open a pause without waiting for it: somebody may decide it from now on.

        A later run gets the same pause, found by its ``key``, else by its ``name`` (the reason by
        default) and its order among those of that name; what it asks stands as first asked. A name
        is counted by this call, and belongs to the asyncio task that makes it, as in `step`. The
        CHECKPOINT update carries the pause's public id, and no text of the token is stored. One
        that is not to be revealed (``reveal``) is decided by its token only, which the handler
        sends itself.

        ``timeout`` is `task_pause_ttl` by default, `active_task_ttl` at most. Nobody having
        decided by then, ``on_timeout`` does: ``"fail"`` raises PauseTimeout where the pause is
        waited for, ``"reject"`` is a no, ``"resume"`` a yes with ``default``. A checkpoint.
        Errors: InvalidField, also for a name that two asyncio tasks use; TaskCancelled, LeaseLost.
        """
        return self._open_pause(*self._ask_pause(reason, payload, options, reveal=reveal))

    async def wait_for(self, pause: Pause | str) -> Decision:
        """Return a pause's decision; end the run and wait for it if there is none yet.

        Takes what `open_pause` returned, or its token. The worker is free while the task waits;
        whoever decides has it run again, on any worker, where this call returns. A checkpoint.
        Errors: PauseTimeout, TokenUnknown if this task has not opened it, TaskCancelled,
        LeaseLost.
        """
        token = pause.token if isinstance(pause, Pause) else pause
        entry = self._entry_of(token)
        await self.checkpoint()
        if self._pauses[entry]["state"] != "decided":
            with self._ending_if_paused():
                note = await self._pausing.wait(self._started, entry)
            if note is None:
                raise self._end_paused()
            self._pauses[entry] |= note
        await self._learn_decision(entry)
        return decision_of(entry, self._pauses[entry])

    def pause(
        self, reason: str = "await_input", payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Open a pause and wait for its decision. See `open_pause` and `wait_for`."""
        return self._pause(*self._ask_pause(reason, payload, options))

    def approval(
        self, question: str, payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Pause until somebody approves or rejects. Like `pause`."""
        content = {"question": question, "details": codec.plain(payload)}
        return self.pause("await_approval", content, **options)

    def spawn(
        self,
        handler: str,
        task_input: Any = None,
        *,
        name: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Coroutine[Any, Any, ChildTask]:
        """Spawn a child task for another handler, in this session; return its handle.

        Once per task: a later run gets the same child, found by its ``name`` (the handler's by
        default) and its order among those of that name. The name is counted by this call, before
        it is awaited. It waits in this task's queue, with its priority, unless told otherwise, and
        is cancelled with this task unless to ``isolate`` it. A task may end before its children,
        which then go on. A checkpoint. Errors: InvalidField, also for a name that two asyncio
        tasks use; TaskCancelled, LeaseLost.
        """
        asked = SpawnRequest.read(self._started, handler, task_input, options)
        entry = self._steps.ask("child", handler if name is None else name)
        self._steps.check_same(entry, asked.asks)
        return self._spawn(entry, asked)

    def join(self, child: ChildTask) -> Coroutine[Any, Any, Any]:
        """Return a child's result; end the run and wait for it if the child is not over yet.

        The worker is free while the task waits; whoever ends the child has it run again. The end
        is noted like a step's result. A checkpoint. Errors: TaskFailed and TaskWasCancelled with
        the child's reason; InvalidField for what is no child of this task; TaskCancelled,
        LeaseLost.
        """
        if child.parent_id != self.task.task_id or child.session_id != self.task.session_id:
            raise InvalidField("child", "is no child of this task")
        return self._join(child, self._steps.do(f"join {child.place}", self._end_of, (child,), {}))

    async def _learn_decision(self, entry: str) -> None:
        """Record a decision that came in during this run, before the handler acts on it.

        Another process wrote the decision, so the server may lose it while it keeps what this run
        does next.
        """
        learned = _DECIDED + entry
        if learned in self._started.journal or entry in self._decided_before:
            return
        self._decided_before.add(entry)
        await self._steps.record(learned, codec.encode(self._pauses[entry]))

    def _ask_pause(
        self, reason: str, payload: Any, options: PauseOptions, *, reveal: bool = True
    ) -> tuple[str, PauseRequest]:
        """Give a pause its number now, in call order."""
        asked = PauseRequest.read(self.store.settings, reason, payload, options, reveal=reveal)
        key = options.get("key")
        if key is not None:
            return self._steps.ask_keyed(f"pause:{key}#key"), asked
        entry = self._steps.ask("pause", asked.name)
        self._steps.check_same(entry, asks(asked.reason, asked.payload))
        return entry, asked

    async def _open_pause(self, entry: str, asked: PauseRequest) -> Pause:
        await self.checkpoint()
        note = self._pauses.get(entry)
        if note is None or note["state"] != "decided":
            with self._ending_if_paused():
                self._pauses[entry] = await self._pausing.open(
                    self._started, entry, asked, self._steps.lane()
                )
        return Pause(asked.name, self._token(entry))

    async def _pause(self, entry: str, asked: PauseRequest) -> Decision:
        return await self.wait_for(await self._open_pause(entry, asked))

    async def _spawn(self, entry: str, asked: SpawnRequest) -> ChildTask:
        await self.checkpoint()
        with self._ending_if_paused():
            return await self._children.spawn(self._started, entry, asked, self._steps.lane())

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

    @contextmanager
    def _ending_if_paused(self) -> Generator[None, None, None]:
        """Take it for the end of this run that another of its coroutines has paused the task."""
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
