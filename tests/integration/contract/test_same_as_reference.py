"""The same operations on the published in-memory store and on ours give the same lists.

Only where the reference is right: ids are used once (it appends a repeated one again), a trace
belongs to one session (it lets another session take it over), a token is saved once, and
``progress`` is never ``{}`` (it comes back as None there).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import RedisStateStore, Settings
from redis_state.store import HostTypes
from tests.support.samples import changed

REASON = "compares with the published package"
their_state = pytest.importorskip("penguiflow.state", reason=REASON)
their_memory = pytest.importorskip("penguiflow.state.in_memory", reason=REASON)
their_planner = pytest.importorskip("penguiflow.planner", reason=REASON)

TYPES = HostTypes(
    stored_event=their_state.StoredEvent,
    remote_binding=their_state.RemoteBinding,
    task_state=their_state.TaskState,
    task_context_snapshot=their_state.TaskContextSnapshot,
    task_status=their_state.TaskStatus,
    task_type=their_state.TaskType,
    state_update=their_state.StateUpdate,
    steering_event=their_state.SteeringEvent,
    planner_event=their_planner.PlannerEvent,
    trajectory=their_planner.Trajectory,
)
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
PLACES = st.sampled_from(["a", "b"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), PLACES, st.sampled_from([1.0, 2.0, 0.1 + 0.2]), OBJECTS),
        st.tuples(st.just("update"), PLACES, PLACES, VALUES),
        st.tuples(st.just("steering"), PLACES, PLACES, OBJECTS),
        st.tuples(st.just("task"), PLACES, PLACES, VALUES),
        st.tuples(st.just("memory"), PLACES, st.none(), OBJECTS),
        st.tuples(st.just("pause"), st.none(), st.none(), OBJECTS),
        st.tuples(st.just("resume"), st.none(), st.integers(0, 5), st.none()),
        st.tuples(st.just("trajectory"), PLACES, PLACES, OBJECTS),
        st.tuples(st.just("planner"), PLACES, st.floats(0, 9), OBJECTS),
        st.tuples(st.just("clear"), PLACES, st.none(), st.none()),
    ),
    max_size=30,
)


@dataclass
class Both:
    """One run: both stores, and names that no other run uses."""

    ours: RedisStateStore
    theirs: Any
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    count: int = 0

    def name(self, *parts: object) -> str:
        return ":".join(map(str, (self.run, *parts)))

    async def same(self, method: str, *arguments: Any, **options: Any) -> None:
        ours = await getattr(self.ours, method)(*arguments, **options)
        theirs = await getattr(self.theirs, method)(*arguments, **options)
        assert ours == theirs, (method, arguments, options)

    async def do(self, step: tuple[str, Any, Any, Any]) -> None:
        """Do one step on both."""
        self.count += 1
        kind, place, other, value = step
        await getattr(self, f"_{kind}")(place, other, value)

    async def _event(self, place: str, ts: float, payload: Any) -> None:
        event = their_state.StoredEvent(self.name("trace", place), ts, "k", None, None, payload)
        await self.same("save_event", event)

    async def _update(self, place: str, other: str, content: Any) -> None:
        update = their_state.StateUpdate(
            session_id=self.name(place),
            task_id=other,
            update_id=f"u{self.count}",
            update_type=their_state.UpdateType.PROGRESS,
            content=content,
        )
        await self.same("save_update", update)

    async def _steering(self, place: str, other: str, payload: Any) -> None:
        event = their_state.SteeringEvent(
            session_id=self.name(place),
            task_id=other,
            event_id=f"e{self.count}",
            event_type=their_state.SteeringEventType.USER_MESSAGE,
            payload=payload,
        )
        await self.same("save_steering", event)

    async def _task(self, place: str, other: str, result: Any) -> None:
        session = self.name(place)
        statuses = list(their_state.TaskStatus)
        task = their_state.TaskState(
            task_id=other,
            session_id=session,
            status=statuses[self.count % len(statuses)],
            task_type=their_state.TaskType.BACKGROUND,
            priority=self.count,
            context_snapshot=their_state.TaskContextSnapshot(session_id=session, task_id=other),
            result=result,
            updated_at=EPOCH + timedelta(seconds=self.count),
        )
        await self.same("save_task", task)

    async def _memory(self, place: str, _: None, state: Any) -> None:
        await self.same("save_memory_state", self.name(place), state)

    async def _pause(self, _: None, __: None, payload: Any) -> None:
        await self.same("save_planner_state", self.name("token", self.count), payload)

    async def _resume(self, _: None, back: int, __: None) -> None:
        await self.same("load_planner_state", self.name("token", self.count - back))

    async def _trajectory(self, place: str, other: str, metadata: Any) -> None:
        trajectory = their_planner.Trajectory(query=str(self.count), metadata=metadata)
        trace = self.name("trace", place, other)
        await self.same("save_trajectory", trace, self.name(place), trajectory)

    async def _planner(self, place: str, ts: float, extra: Any) -> None:
        event = their_planner.PlannerEvent("step", ts, self.count, extra=extra)
        await self.same("save_planner_event", self.name("trace", place, "a"), event)

    async def _clear(self, place: str, _: None, __: None) -> None:
        await self.ours.clear_session(self.name(place))
        self.theirs.clear_session(self.name(place))

    async def compare(self, since: int, limit: int) -> None:
        """Compare everything that can be read."""
        for place in ("a", "b"):
            session = self.name(place)
            for method, letter in (("list_updates", "u"), ("list_steering", "e")):
                for task_id in (None, "a", "b"):
                    await self.same(method, session, task_id=task_id)
                    cursor = f"{letter}{since}"
                    await self.same(method, session, task_id=task_id, since_id=cursor, limit=limit)
            await self.same("list_tasks", session)
            await self.same("load_memory_state", session)
            await self.same("load_history", self.name("trace", place))
            await self.same("list_traces", session)
            await self.same("list_traces", session, limit)
            for other in ("a", "b"):
                trace = self.name("trace", place, other)
                await self._same_trajectory(trace, session)
                await self.same("list_planner_events", trace)
                await self.same("load_history", trace)

    async def _same_trajectory(self, trace: str, session: str) -> None:
        ours = await self.ours.get_trajectory(trace, session)
        theirs = await self.theirs.get_trajectory(trace, session)
        shown = [each and each.serialise() for each in (ours, theirs)]
        assert shown[0] == shown[1]


@pytest.fixture
async def ours(settings: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store with the types of the package; each example has names of its own."""
    async with RedisStateStore(settings, types=TYPES) as opened:
        yield opened


@given(steps=STEPS, since=st.integers(0, 12), limit=st.integers(1, 8))
async def test_random_operations_leave_both_stores_alike(
    ours: RedisStateStore, steps: list[tuple[str, Any, Any, Any]], since: int, limit: int
) -> None:
    both = Both(ours, their_memory.InMemoryStateStore())
    for step in steps:
        await both.do(step)
    await both.compare(since, limit)


async def test_both_keep_as_many_of_the_newest_rows(settings: Any) -> None:
    bounds = {"max_updates_per_session": 5, "max_events_per_trace": 5}
    async with changed(settings, **bounds) as ours:
        ours_typed = RedisStateStore(ours.settings, types=TYPES)
        both = Both(ours_typed, their_memory.InMemoryStateStore(**bounds))
        for number in range(12):
            await both.do(("update", "a", "a", number))
            await both.do(("event", "a", 1.0, {"n": number}))
        await both.compare(3, 2)
        await ours_typed.aclose()
