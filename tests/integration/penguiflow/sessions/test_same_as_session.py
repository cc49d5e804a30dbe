"""The same steps on the published session and on ours give the same context, patches and groups.

Only where the published one keeps what it was given. It drops a gated patch's payload and group
(ours are there when it is approved); it lets a task end twice, once each way, and counts it twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import LostRace, RedisStateStore, Settings
from redis_state.models.session_context import extract_results, has_diverged, hash_context

REASON = "compares with the published package"
session_module = pytest.importorskip("penguiflow.sessions.session", reason=REASON)
persistence = pytest.importorskip("penguiflow.sessions.persistence", reason=REASON)
trajectory = pytest.importorskip("penguiflow.planner.trajectory", reason=REASON)
penguiflow = pytest.importorskip("redis_state.integrations.penguiflow", reason=REASON)

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
TASKS = st.sampled_from(["a", "b", "c"])
INLINE = st.fixed_dictionaries(
    {},
    optional={
        "goal": VALUES,
        "background_result": st.fixed_dictionaries(
            {"task_id": TASKS, "completed_at": st.floats(0, 9)},
            optional={
                "digest": st.lists(st.text(max_size=2)),
                "facts": OBJECTS,
                "status": st.sampled_from(["failed", "completed", "odd"]),
                "group_id": st.none() | st.integers() | st.text(max_size=2),
                "artifacts": st.lists(OBJECTS | st.none(), max_size=2),
            },
        ),
        "background_results": st.dictionaries(
            st.text(max_size=2),
            st.fixed_dictionaries({"task_id": TASKS | st.none(), "completed_at": st.just(1.0)}),
            max_size=2,
        ),
    },
)
# The source: which of the versions so far it is, and whether its hash is the one of now.
SOURCES = st.tuples(st.none() | st.integers(0, 2), st.sampled_from([None, "now", "other"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.none() | INLINE | OBJECTS, st.none() | OBJECTS),
        st.tuples(
            st.just("apply"),
            TASKS,
            st.tuples(
                st.sampled_from(["append", "replace", "human_gated"]), SOURCES, OBJECTS, VALUES
            ),
        ),
        st.tuples(st.just("approve"), st.integers(0, 3), st.none()),
        st.tuples(st.just("reject"), st.integers(0, 3), st.none()),
        st.tuples(st.just("consume"), st.lists(TASKS, max_size=2), st.none()),
    ),
    min_size=5,
    max_size=25,
)


class Both:
    """One session of each."""

    def __init__(self, store: RedisStateStore) -> None:
        self.session_id = uuid.uuid4().hex
        self.kept = persistence.InMemorySessionStateStore()
        self.theirs = session_module.StreamingSession(self.session_id, state_store=self.kept)
        self.store = store
        self.ours = store.contexts
        self.ids: list[tuple[str, str]] = []
        self.payloads: dict[str, tuple[str, Any]] = {}
        self.approved: dict[str, Any] = {}

    async def do(self, kind: str, first: Any, second: Any) -> None:
        await getattr(self, kind)(first, second)

    async def update(self, llm_context: Any, tool_context: Any) -> None:
        parts = {"llm_context": llm_context, "tool_context": tool_context}
        self.theirs.update_context(**parts)
        reported = await self.ours.update_context(self.session_id, **parts)
        assert reported == (self.theirs.context_version, self.theirs.context_hash)

    async def apply(self, task_id: str, given: tuple[str, Any, Any, Any]) -> None:
        strategy, (back, source), facts, payload = given
        hashes = {"now": self.theirs.context_hash, "other": "other"}
        patch = session_module.ContextPatch(
            task_id=task_id,
            source_context_version=None if back is None else self.theirs.context_version - back,
            source_context_hash=hashes.get(source or ""),
            digest=[task_id, "done"],
            facts=facts,
        )
        more: dict[str, Any] = {
            "payload": payload,
            "group_id": "g",
            "strategy": session_module.MergeStrategy(strategy),
        }
        theirs = await self.theirs.apply_context_patch(patch=patch, **more)
        ours = await self.ours.apply_context_patch(self.session_id, patch, **more)
        assert (theirs is not None) == (ours.status == "pending")
        if theirs is not None:
            self.ids.append((theirs, ours.patch_id))
            self.payloads[theirs] = task_id, payload

    async def approve(self, number: int, _: None) -> None:
        await self._decide(number, "APPROVE")

    async def reject(self, number: int, _: None) -> None:
        await self._decide(number, "REJECT")

    async def _decide(self, number: int, kind: str) -> None:
        """Decide on one of the patches so far, perhaps on one that was decided on before."""
        if not self.ids:
            return
        theirs, ours = self.ids[number % len(self.ids)]
        waits = theirs in self.theirs.pending_patches
        event = session_module.SteeringEvent(
            session_id=self.session_id,
            task_id="t",
            event_type=session_module.SteeringEventType(kind),
            payload={"patch_id": theirs},
            trace_id="trace",
        )
        await self.theirs.steer(event)
        own: Any = event.model_copy(update={"payload": {"patch_id": ours}})
        if waits:
            outcome = await self.ours.resolve_by_steering(own)
            assert outcome is not None
            assert outcome.status == ("applied" if kind == "APPROVE" else "rejected")
            if kind == "APPROVE":
                task_id, payload = self.payloads[theirs]
                self.approved[task_id] = payload
        else:
            with pytest.raises(LostRace):
                await self.ours.resolve_by_steering(own)

    async def consume(self, task_ids: list[str], _: None) -> None:
        theirs = await self.theirs.mark_background_consumed(task_ids=task_ids)
        ours = await self.ours.mark_background_consumed(self.session_id, task_ids=task_ids)
        assert ours == theirs

    async def compare(self) -> None:
        theirs = self.theirs._context
        ours: Any = await self.ours.load(self.session_id) or session_module.SessionContext()
        assert type(ours) is type(theirs)
        assert (ours.llm_context, ours.tool_context) == (theirs.llm_context, theirs.tool_context)
        assert (ours.version, ours.context_hash) == (theirs.version, theirs.context_hash)
        assert list(ours.background_results) == list(theirs.background_results)
        for task_id, result in ours.background_results.items():
            their = theirs.background_results[task_id]
            if their.payload is None and their.group_id is None and result.group_id == "g":
                assert result.payload == self.approved[task_id]
                their = dataclasses.replace(their, payload=result.payload, group_id="g")
            assert result == their
        await self._compare_waiting()
        await self._compare_updates()

    async def _compare_waiting(self) -> None:
        names = dict(self.ids)
        theirs = self.theirs.pending_patches
        ours: dict[str, Any] = await self.ours.pending_patches(self.session_id)
        assert list(ours) == [names[patch_id] for patch_id in theirs]
        for patch_id, waiting in theirs.items():
            mine = ours[names[patch_id]]
            assert type(mine) is type(waiting)
            assert (
                dataclasses.replace(waiting, patch_id=mine.patch_id, created_at=mine.created_at)
                == mine
            )

    async def _compare_updates(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # publications are tasks that nobody awaits
        names = dict(self.ids)
        theirs = await self.kept.list_updates(self.session_id)
        ours = await self.store.list_updates(self.session_id)
        reported = [(u.task_id, u.trace_id, u.update_type.value, dict(u.content)) for u in theirs]
        for *_, content in reported:
            if "patch_id" in content:
                content["patch_id"] = names[content["patch_id"]]
        assert [(u.task_id, u.trace_id, u.update_type.value, u.content) for u in ours] == reported


@given(steps=STEPS)
async def test_random_steps_leave_both_contexts_alike(
    settings: Settings, steps: list[tuple[str, Any, Any]]
) -> None:
    async with RedisStateStore(settings, types=penguiflow.TYPES) as store:
        both = Both(store)
        for step in steps:
            await both.do(*step)
        await both.compare()


GROUP_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "join", "join", "finish", "finish", "seal", "cancel", "yield"]),
        st.sampled_from(["one", "two"]),
        TASKS,
        st.booleans(),
    ),
    min_size=5,
    max_size=25,
)
TIMES = ("created_at", "sealed_at", "completed_at")


class BothGroups:
    """The groups of one session of each, by name."""

    def __init__(self, store: RedisStateStore) -> None:
        self.session_id = uuid.uuid4().hex
        self.theirs = session_module.StreamingSession(self.session_id)
        self.groups = store.groups
        self.names: dict[str, str] = {}
        self.last: dict[str, str] = {}

    async def do(self, kind: str, name: str, task_id: str, *, flag: bool) -> None:
        if kind == "open":
            report: Any = "all" if flag else "none"
            theirs = await self.theirs.resolve_or_create_group(
                group_name=name, turn_id="1", report_strategy=report
            )
            ours = await self.groups.open(
                self.session_id, name=name, turn_id="1", report_strategy=report
            )
            assert self.names.setdefault(theirs.group_id, ours.group_id) == ours.group_id
            self.last[name] = theirs.group_id
        elif kind == "yield":
            count = await self.theirs.auto_seal_open_groups(turn_id="1")
            assert len(await self.groups.seal_turn(self.session_id, "1")) == count
        elif name in self.last:
            their = self.last[name]
            await getattr(self, kind)(their, self.names[their], task_id, flag=flag)

    async def join(self, their: str, our: str, task_id: str, *, flag: bool) -> None:
        del flag
        group = await self.theirs.get_group(their)
        if task_id in group.task_ids and group.status != "open":
            return  # a member is a member here, there it is told no
        joined = await self.theirs.add_task_to_group(their, task_id)
        assert await self.groups.join(self.session_id, our, task_id) == joined

    async def finish(self, their: str, our: str, task_id: str, *, flag: bool) -> None:
        before = await self.theirs.get_group(their)
        if task_id not in before.pending_task_ids:
            return
        was_over = before.status in ("complete", "failed")
        patch_id = f"p{task_id}" if flag else None
        await self.theirs.mark_task_complete_in_group(
            their, task_id, success=flag, patch_id=patch_id
        )
        step = await self.groups.finish(
            self.session_id, our, task_id, success=flag, patch_id=patch_id
        )
        after = await self.theirs.get_group(their)
        assert step is not None
        assert step.status == after.status
        assert step.completed == (after.is_complete and not was_over)

    async def seal(self, their: str, our: str, task_id: str, *, flag: bool) -> None:
        del task_id, flag
        sealed = await self.theirs.seal_group(their)
        assert (await self.groups.seal(self.session_id, our) is not None) == sealed

    async def cancel(self, their: str, our: str, task_id: str, *, flag: bool) -> None:
        del task_id, flag
        cancelled = await self.theirs.cancel_group(their, propagate=False)
        assert (await self.groups.cancel(self.session_id, our) is not None) == cancelled

    async def compare(self) -> None:
        theirs = await self.theirs.list_groups()
        ours: Any = await self.groups.list(self.session_id)
        assert len(ours) == len(theirs)
        for mine, their in zip(ours, theirs, strict=True):
            assert type(mine) is type(their)
            reported, wanted = mine.model_dump(), their.model_dump()
            assert reported.pop("group_id") == self.names[wanted.pop("group_id")]
            for moment in TIMES:
                assert (reported.pop(moment) is None) == (wanted.pop(moment) is None)
            assert reported == wanted


@given(steps=GROUP_STEPS)
async def test_random_steps_leave_both_groups_alike(
    settings: Settings, steps: list[tuple[str, str, str, bool]]
) -> None:
    async with RedisStateStore(settings, types=penguiflow.TYPES) as store:
        both = BothGroups(store)
        for kind, name, task_id, flag in steps:
            await both.do(kind, name, task_id, flag=flag)
        await both.compare()


@given(content=OBJECTS)
def test_the_hash_is_the_published_one(content: dict[str, Any]) -> None:
    assert hash_context(content) == session_module._hash_context(content)
    assert hash_context(content) is not None


@pytest.mark.parametrize(
    "content", [{"a": {1}}, {"a": object()}, {1: 1, "a": 2}, {"n": float("nan")}]
)
def test_the_hash_of_what_json_cannot_hold_is_the_published_one(content: dict[Any, Any]) -> None:
    assert hash_context(content) == session_module._hash_context(content)


def test_a_context_that_their_hash_breaks_on_has_none() -> None:
    with pytest.raises(UnicodeEncodeError):
        session_module._hash_context({"a": "\ud800"})
    assert hash_context({"a": "\ud800"}) is None


def test_their_own_result_objects_are_taken_out_too() -> None:
    result = trajectory.BackgroundTaskResult("a")
    context: dict[str, Any] = {
        "background_results": [result, None, 5, "x"],
        "background_result": {},
    }
    cleaned, found = extract_results(context)
    left, theirs = trajectory.extract_background_results(context)
    assert cleaned == left
    # Ours, whatever class a host has: a store reads them by their known fields.
    assert {key: asdict(each) for key, each in found.items()} == {
        key: asdict(each) for key, each in theirs.items()
    }


@pytest.mark.parametrize("version", [None, 0, 1])
@pytest.mark.parametrize("source", [None, "", "h"])
async def test_divergence_is_found_as_published(version: Any, source: Any) -> None:
    session = session_module.StreamingSession("s")
    patch = session_module.ContextPatch(
        task_id="t", source_context_version=version, source_context_hash=source
    )
    patch_id = await session.apply_context_patch(
        patch=patch, strategy=session_module.MergeStrategy.HUMAN_GATED
    )
    diverged = session.pending_patches[patch_id].patch.context_diverged
    assert has_diverged(patch, 0, None) == diverged
