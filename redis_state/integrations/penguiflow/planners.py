"""A planner as a task of the worker pool: paused in one worker, resumed in any.

    worker = AgentWorker({"plan": planner_handler(build_planner)})
    await client.submit("plan", "Publish the notes", session_id="session-1")

The planner's pause becomes the task's pause. The worker is free, and the holder of the pause's
token approves or rejects it through `TaskClient`. A new planner, in any worker, continues with the
stored trajectory. Each stretch between two pauses is a step of the task. A crash in the middle of
one repeats the stretch. There `once` and `recorded_model` return recorded results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from penguiflow.planner import PlannerFinish, PlannerPause, ReactPlanner
from penguiflow.state import SteeringEvent, SteeringEventType
from penguiflow.steering import SteeringCancelled, SteeringInbox

from redis_state import limits
from redis_state.errors import BackendUnavailable, InvalidField, LostRace
from redis_state.integrations.penguiflow.memory import memory_key_of, remembering
from redis_state.integrations.penguiflow.pauses import resume_once
from redis_state.integrations.penguiflow.state import PenguiflowStateStore
from redis_state.integrations.penguiflow.tasks import (
    built,
    interruptible,
    job_store,
    running,
    trace_of,
)
from redis_state.serialization import codec
from redis_state.worker import Decision, Handler, TaskCancelled, TaskContext
from redis_state.worker.tasks.waitpoints.pause_model import PauseOptions

PlannerFactory = Callable[
    [PenguiflowStateStore, TaskContext], ReactPlanner | Awaitable[ReactPlanner]
]
Answer = Callable[[Decision], str]

# A pause that was approved in its last moment may still wait for a worker.
_MARGIN = timedelta(days=1)


def planner_handler(
    build: PlannerFactory,
    *,
    pause: PauseOptions | None = None,
    answer: Answer | None = None,
    summary_s: float = 30.0,
) -> Handler:
    """Make a handler that runs a planner until it has finished, through all of its pauses.

    ``build(store, ctx)`` makes a new planner on ``store``, for each stretch. PenguiFlow's planner
    keeps copies of its pauses, so a longer-lived one could resume another worker's pause.

    The task's input is the query, or an object with ``query`` and optional ``llm_context`` and
    ``tool_context``. The latter gets ``session_id``, ``trace_id`` and ``task_id``. ``pause`` are
    the options of the task's pauses, see `TaskContext.open_pause`. ``answer`` turns a decision into
    the planner's input; by default it is the decision's value, or that it was approved or rejected.

    A planner with one of our memories adds its turn once, however often the run begins again. The
    task ends when the summary is made too, or after ``summary_s``: then the next task of the
    session makes it. A planner with a memory configuration gets one of ours.

    The task's result is ``reason``, ``payload`` and ``metadata`` of PlannerFinish, and the
    ``trace_id``. The steps are in the trajectory. Errors, which fail the task: InvalidField for an
    invalid input; TokenUnknown if the planner's own pause is gone; the planner's.
    """
    options: PauseOptions = {} if pause is None else pause
    if "key" in options:
        raise InvalidField("pause", "cannot have a key: a planner may pause more than once")
    limits.patience("summary_s", summary_s)
    report = answer or answer_of

    async def plan(ctx: TaskContext) -> dict[str, Any]:
        timeout = options.get("timeout") or ctx.store.settings.task_pause_ttl
        plan = _Plan(build, ctx, PlannerRequest.read(ctx), timeout + _MARGIN, summary_s)
        stretch: dict[str, Any] = await ctx.step("run", plan.begin)
        while "token" in stretch:
            named: PauseOptions = {"name": stretch["reason"], **options}
            decision = await ctx.pause(stretch["reason"], stretch["payload"], **named)
            token, reported = stretch["token"], stretch["told"]
            stretch = await ctx.step("resume", plan.resume, token, report(decision), reported)
        return {**stretch["finished"], "trace_id": trace_of(ctx)}

    return plan


def answer_of(decision: Decision) -> str:
    """Return a decision as text, for a planner."""
    verdict = "approved" if decision.approved else "rejected"
    if decision.value is None:
        return verdict
    value: Any = decision.value
    text: str = value if isinstance(value, str) else codec.encode(value).decode()
    return text if decision.approved else f"{verdict}: {text}"


@dataclass(frozen=True, slots=True)
class PlannerRequest:
    """What a task asks of its planner."""

    query: str
    llm_context: dict[str, Any] = field(repr=False)
    tool_context: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, ctx: TaskContext) -> PlannerRequest:
        """Read a task's input. Errors: InvalidField names what cannot be used."""
        given: Any = {"query": ctx.input} if isinstance(ctx.input, str) else ctx.input
        if not isinstance(given, dict):
            raise InvalidField("input", f"a text or an object is needed, not {_kind(given)}")
        fields = cast("dict[str, Any]", given)
        unknown = sorted(set(fields) - {"query", "llm_context", "tool_context"})
        if unknown:
            raise InvalidField("input", f"has no {unknown[0]!r}")
        query = fields.get("query")
        if not isinstance(query, str):
            raise InvalidField("query", f"text is needed, not {_kind(query)}")
        contexts: list[dict[str, Any]] = []
        for name in ("llm_context", "tool_context"):
            value = fields.get(name, {})
            if not isinstance(value, dict):
                raise InvalidField(name, f"an object is needed, not {_kind(value)}")
            contexts.append(cast("dict[str, Any]", value))
        llm_context, tool_context = contexts
        ids = {
            "session_id": ctx.task.session_id,
            "trace_id": trace_of(ctx),
            "task_id": ctx.task.task_id,
        }
        return cls(query, llm_context, {**tool_context, **ids})


class TaskInbox(SteeringInbox):  # type: ignore[misc]  # penguiflow has no types
    """A task's steering in the form of a planner's inbox. No event is dropped for lack of room.

    ``known`` are the events that earlier stretches received. A later stretch has them in its
    trajectory, and does not receive them again.
    """

    def __init__(self, ctx: TaskContext, known: Sequence[str] = ()) -> None:
        super().__init__(maxsize=0)
        self.reported: list[str] = []
        self._ctx = ctx
        self._known = frozenset(known)
        self._waiting: list[SteeringEvent] = []

    @property
    def cancelled(self) -> bool:
        """Whether the task is to end."""
        return self._ctx.inbox.cancelled or super().cancelled

    @property
    def cancel_reason(self) -> str | None:
        """The reason of the cancel, if one was given."""
        return self._ctx.inbox.cancel_reason

    def has_event(self) -> bool:
        """Return whether there is something that the planner has not received."""
        self._look()
        return bool(self._waiting)

    def drain(self) -> list[SteeringEvent]:
        """Return the events that have arrived, in order."""
        self._look()
        events, self._waiting = self._waiting, []
        self.reported += [event.event_id for event in events]
        return events

    async def next(self) -> SteeringEvent:
        """Wait for the next event. Errors: TaskCancelled."""
        while not self.has_event():
            self._receive(await self._ctx.inbox.wait())
        event = self._waiting.pop(0)
        self.reported.append(event.event_id)
        return event

    async def wait_if_paused(self) -> None:
        """Wait while a PAUSE event is in force. Errors: TaskCancelled, LeaseLost."""
        await self._ctx.checkpoint()

    def _look(self) -> None:
        self._receive(self._ctx.inbox.take())

    def _receive(self, events: Sequence[Any]) -> None:
        for event in events:
            if event.event_id not in self._known:
                self._waiting.append(SteeringEvent.model_validate(event.model_dump()))


class RecordedModel:
    """A planner's model client whose answers are recorded as steps. See `recorded_model`."""

    def __init__(self, client: Any, ctx: TaskContext) -> None:
        self._client = client
        self._ctx = ctx
        self._requested: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def complete(self, **request: Any) -> Any:
        """Call the model, unless an earlier run of this task sent it the same prompt."""
        prompt = codec.fingerprint(request.get("messages"), request.get("response_format"))
        # The same question again in one run wants another answer.
        self._requested[prompt] = number = self._requested.get(prompt, 0) + 1

        async def ask() -> Any:
            stated: Any = await self._client.complete(**request)
            if not isinstance(stated, tuple):
                return stated
            text, cost = cast("tuple[str, float]", stated)
            return {"text": text, "cost": cost}

        with interruptible():
            recorded: Any = await self._ctx.keyed_step("model", f"{prompt}-{number}", ask)
        if not isinstance(recorded, dict):
            return recorded
        answer = cast("dict[str, Any]", recorded)
        return answer["text"], answer["cost"]


def recorded_model(client: Any, ctx: TaskContext) -> Any:
    """Wrap a planner's ``llm_client`` so that a repeated run does not call the model again.

    The repeated run gets the recorded answers, so the planner decides in the same way and calls the
    same tools. A different prompt, for example after a new message, is sent. For clients whose
    ``complete`` returns a text, or a text and its cost.
    """
    return RecordedModel(client, ctx)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One run of a task's planner. Each stretch up to a pause or the end has a new planner.

    All that PenguiFlow saves without waiting is written when a stretch returns.
    """

    build: PlannerFactory
    ctx: TaskContext
    requested: PlannerRequest
    pause_lives: timedelta
    summary_s: float

    async def begin(self) -> dict[str, Any]:
        """Run a planner from its start."""

        async def run(planner: ReactPlanner, _: Any, inbox: TaskInbox) -> Any:
            return await planner.run(
                self.requested.query,
                llm_context=self.requested.llm_context or None,
                tool_context=self.requested.tool_context,
                memory_key=memory_key_of(planner, self.requested.tool_context),
                steering=inbox,
            )

        return await self._stretch("run", run)

    async def resume(self, token: str, user_input: str, reported: Sequence[str]) -> dict[str, Any]:
        """Run a planner from a pause on."""
        task = self.ctx.task
        # The task's own lease lets one run at a time do this; a crashed one is followed by another.
        key = codec.fingerprint("task", task.session_id, task.task_id)

        async def resume(
            planner: ReactPlanner, store: PenguiflowStateStore, inbox: TaskInbox
        ) -> Any:
            return await resume_once(
                planner,
                store,
                token,
                user_input,
                idempotency_key=key,
                actor=self.ctx.worker,
                tool_context=self.requested.tool_context,
                memory_key=memory_key_of(planner, self.requested.tool_context),
                steering=inbox,
            )

        return await self._stretch(token, resume, reported)

    async def _stretch(
        self,
        name: str,
        go: Callable[[ReactPlanner, PenguiflowStateStore, TaskInbox], Awaitable[Any]],
        reported: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return a pause or the end, and what the planner received meanwhile."""
        inbox = TaskInbox(self.ctx, reported)
        with running(self.ctx):
            async with job_store(self.ctx, pause_lives=self.pause_lives) as store:
                planner = await built(self.build(store, self.ctx))
                try:
                    async with self._remembering(planner, store, name), _Ending(self.ctx, inbox):
                        outcome = await go(planner, store, inbox)
                except SteeringCancelled:
                    self.ctx.inbox.raise_if_over()
                    raise
                if not isinstance(outcome, PlannerPause):
                    return {"finished": _result(outcome)}
                await _check_saved(store, outcome)
                return {
                    "token": outcome.resume_token,
                    "reason": str(outcome.reason),
                    "payload": codec.plain(outcome.payload),
                    "told": [*reported, *inbox.reported],
                }

    def _remembering(
        self, planner: ReactPlanner, store: PenguiflowStateStore, name: str
    ) -> AbstractAsyncContextManager[None]:
        task = self.ctx.task
        # An id may be that of an earlier task which is no longer kept.
        made = task.created_at.isoformat()
        turn = codec.fingerprint("task", task.session_id, task.task_id, made, name)
        return remembering(
            planner,
            store,
            name=turn,
            summary_s=self.summary_s,
            tool_context=self.requested.tool_context,
        )


class _Ending:
    """Inform a planner's inbox, for the length of a block, when the run has ended."""

    def __init__(self, ctx: TaskContext, inbox: TaskInbox) -> None:
        self._ctx = ctx
        self._inbox = inbox

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _watch(self) -> None:
        try:
            await self._ctx.inbox.until_over()
        except (TaskCancelled, LostRace):
            task = self._ctx.task
            end = SteeringEvent(
                session_id=task.session_id,
                task_id=task.task_id,
                event_type=SteeringEventType.CANCEL,
            )
            await self._inbox.push(end)


async def _check_saved(store: PenguiflowStateStore, pause: PlannerPause) -> None:
    """Errors: BackendUnavailable if PenguiFlow could not save a pause, which it only logs.

    Then the run begins again, rather than wait for a decision that nobody could act on.
    """
    key = store.base.keys.pause(pause.resume_token)
    if not await store.transport.commands.exists(key):
        raise BackendUnavailable(str(store.transport.address), "a planner's pause was not saved")


def _result(finish: PlannerFinish) -> dict[str, Any]:
    metadata = {name: value for name, value in finish.metadata.items() if name != "steps"}
    result = {"reason": finish.reason, "payload": finish.payload, "metadata": metadata}
    return cast("dict[str, Any]", codec.plain(result))


def _kind(value: object) -> str:
    return type(value).__name__


__all__ = ["RecordedModel", "TaskInbox", "answer_of", "planner_handler", "recorded_model"]
