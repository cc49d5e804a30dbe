"""Patches: applied once, decided on once, across processes, lost replies and deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

from redis_state import (
    InvalidField,
    LimitReached,
    RedisStateStore,
    Settings,
    TokenResolved,
    TokenUnknown,
    VersionConflict,
)
from redis_state.models import SteeringEvent, SteeringEventType, UpdateType
from redis_state.models.session_context import ContextPatch, MergeStrategy, hash_context
from redis_state.testing import eventually
from tests.support.samples import admin, changed, keys_of, shared
from tests.support.servers.faults import Proxy, run_processes, start_process
from tests.support.servers.proxies.command_proxy import CommandProxy

T = TypeVar("T")

GATED = MergeStrategy.HUMAN_GATED


def unchecked(**fields: Any) -> Any:
    """Make a patch of anything."""
    return ContextPatch.model_construct(**fields)


def patch(task_id: Any = "t", **more: Any) -> ContextPatch:
    return ContextPatch(task_id=task_id, **more)


async def stated(store: RedisStateStore) -> list[tuple[str, str]]:
    """List the updates by kind and title."""
    updates = await store.list_updates("s")
    return [
        (update.update_type.value, update.content.get("title") or update.content["kind"])
        for update in updates
    ]


async def test_a_context_that_is_cleared_leaves_no_patch(store: RedisStateStore) -> None:
    contexts = store.contexts
    await contexts.apply_context_patch("s", patch("applied"), patch_id="applied")
    for name in ("waits", "approved", "rejected"):
        await contexts.apply_context_patch("s", patch(name), strategy=GATED, patch_id=name)
    await contexts.apply_pending_patch("s", "approved")
    await contexts.reject_pending_patch("s", "rejected")
    assert len([key for key in await keys_of(store) if "}:patch:" in key]) == 4
    await contexts.clear("s")
    left = {key.partition("}:")[2].partition(":")[0] for key in await keys_of(store)}
    assert left == {"updates"}
    assert await contexts.pending_patches("s") == {}
    # So a later patch of a name is a new one.
    again = await contexts.apply_context_patch("s", patch("applied"), patch_id="applied")
    assert again.status == "applied"
    context = await contexts.load("s")
    assert context is not None
    assert list(context.background_results) == ["applied"]


async def test_an_applied_patch_becomes_its_tasks_result(store: RedisStateStore) -> None:
    contexts = store.contexts
    for strategy in (MergeStrategy.APPEND, MergeStrategy.REPLACE):
        applied = await contexts.apply_context_patch(
            "s",
            patch(digest=["two", "lines"], facts={strategy.value: 1}, artifacts=[{"a": 1}]),
            strategy=strategy,
            payload={"p": 0},
            group_id="g",
        )
        assert (applied.status, applied.diverged, applied.first) == ("applied", False, True)
        found = await contexts.load("s")
        assert found is not None
        result = found.background_results["t"]
        assert (result.summary, result.payload, result.group_id) == ("two lines", {"p": 0}, "g")
        assert (result.facts, result.artifacts) == ({strategy.value: 1}, [{"a": 1}])
        assert found.version == 0
    assert await stated(store) == []


async def test_a_patch_from_an_older_context_says_so(store: RedisStateStore) -> None:
    version, context_hash = await store.contexts.update_context("s", llm_context={"a": 1})
    apply = store.contexts.apply_context_patch
    same = patch(source_context_version=version, source_context_hash=context_hash)
    assert (await apply("s", same)).diverged is False
    assert (await apply("s", patch(source_context_version=0))).diverged is True
    assert (await apply("s", patch(source_context_hash=hash_context({})))).diverged is True
    await store.contexts.update_context("s", tool_context={})
    assert (await apply("s", same)).diverged is True
    assert await stated(store) == [("NOTIFICATION", "Context changed")] * 3


async def test_the_same_patch_again_does_nothing(store: RedisStateStore) -> None:
    apply = store.contexts.apply_context_patch
    first = await apply("s", patch(source_context_version=9), patch_id="p")
    await store.contexts.mark_background_consumed("s", task_ids=["t"])
    again = await apply("s", patch(source_context_version=9), patch_id="p")
    assert (first.first, again.first, again.status, again.diverged) == (
        True,
        False,
        "applied",
        True,
    )
    found = await store.contexts.load("s")
    assert found is not None
    assert found.background_results == {}
    waits = await apply("s", patch(), patch_id="q", strategy=GATED)
    repeated = await apply("s", patch(), patch_id="q", strategy=GATED)
    assert (waits.status, repeated.status, repeated.first) == ("pending", "pending", False)
    assert await stated(store) == [
        ("NOTIFICATION", "Context changed"),
        ("CHECKPOINT", "context_patch"),
    ]


async def test_a_gated_patch_waits_across_restarts_and_is_approved(
    store: RedisStateStore, settings: Settings
) -> None:
    requested = await store.contexts.apply_context_patch(
        "s", patch(digest=["d"], assumptions=["kept"]), strategy=GATED, payload=[0], group_id="g"
    )
    await store.contexts.apply_context_patch("s", patch("later"), strategy=GATED)
    async with RedisStateStore(settings) as elsewhere:
        waiting = await elsewhere.contexts.pending_patches("s")
        assert [each.task_id for each in waiting.values()] == ["t", "later"]
        assert waiting[requested.patch_id].patch.assumptions == ["kept"]
        assert waiting[requested.patch_id].strategy is GATED
        # Divergence is what it is when the decision is made.
        await elsewhere.contexts.update_context("s", llm_context={"moved": 1})
        approved = await elsewhere.contexts.apply_pending_patch(
            "s", requested.patch_id, actor="ann"
        )
    assert (approved.status, approved.diverged) == ("applied", False)
    found = await store.contexts.load("s")
    assert found is not None
    result = found.background_results["t"]
    assert (result.payload, result.group_id, result.summary) == ([0], "g", "d")
    assert list(await store.contexts.pending_patches("s")) != [requested.patch_id]
    checkpoint, _, reported = await store.list_updates("s")
    assert checkpoint.update_type is UpdateType.CHECKPOINT
    assert checkpoint.content["patch_id"] == requested.patch_id
    assert reported.content["title"] == "Context updated"


async def test_divergence_is_found_anew_when_a_patch_is_approved(store: RedisStateStore) -> None:
    requested = await store.contexts.apply_context_patch(
        "s", patch(source_context_version=0), strategy=GATED
    )
    assert requested.diverged is False
    await store.contexts.update_context("s", llm_context={"moved": 1})
    approved = await store.contexts.apply_pending_patch("s", requested.patch_id)
    assert approved.diverged is True
    assert (await stated(store))[1:] == [
        ("NOTIFICATION", "Context changed"),
        ("NOTIFICATION", "Context updated"),
    ]


async def test_the_loser_learns_by_whom_when_and_how(store: RedisStateStore) -> None:
    requested = await store.contexts.apply_context_patch("s", patch(), strategy=GATED)
    rejected = await store.contexts.reject_pending_patch(
        "s", requested.patch_id, actor="ann", idempotency_key="c"
    )
    assert (rejected.status, rejected.first) == ("rejected", True)
    await store.contexts.update_context("s", llm_context={"moved": 1})
    again = await store.contexts.reject_pending_patch(
        "s", requested.patch_id, actor="ann", idempotency_key="c"
    )
    assert (again.status, again.first) == ("rejected", False)
    with pytest.raises(TokenResolved):
        await store.contexts.apply_pending_patch("s", requested.patch_id, idempotency_key="c")
    with pytest.raises(TokenResolved) as caught:
        await store.contexts.apply_pending_patch("s", requested.patch_id, actor="bob")
    assert caught.value.actor == "ann"
    assert caught.value.at_ms > 1_600_000_000_000
    assert caught.value.decision["status"] == "rejected"
    found = await store.contexts.load("s")
    assert found is not None
    assert found.llm_context == {"moved": 1}
    applied = await store.contexts.apply_context_patch("s", patch())
    with pytest.raises(TokenResolved):
        await store.contexts.reject_pending_patch("s", applied.patch_id)


async def test_a_patch_that_nobody_decides_on_expires(settings: Settings) -> None:
    async with changed(settings, pending_patch_ttl="PT0.05S") as store:
        requested = await store.contexts.apply_context_patch("s", patch(), strategy=GATED)

        async def gone() -> bool:
            return await store.contexts.pending_patches("s") == {}

        await eventually(gone, "the patch expires")
        with pytest.raises(TokenUnknown) as caught:
            await store.contexts.apply_pending_patch("s", requested.patch_id)
        assert caught.value.expired
        with pytest.raises(TokenUnknown) as caught:
            await store.contexts.reject_pending_patch("s", "never was")
        assert not caught.value.expired


async def test_only_so_many_wait(settings: Settings) -> None:
    async with changed(settings, max_pending_patches=2) as store:
        apply = store.contexts.apply_context_patch
        ids = [(await apply("s", patch(), strategy=GATED)).patch_id for _ in range(2)]
        with pytest.raises(LimitReached) as caught:
            await apply("s", patch(), strategy=GATED)
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.limit == 2
        assert (await apply("s", patch())).status == "applied"
        await store.contexts.reject_pending_patch("s", ids[0])
        assert (await apply("s", patch(), strategy=GATED)).status == "pending"


async def test_a_steering_event_decides(store: RedisStateStore) -> None:
    def event(kind: SteeringEventType, payload: dict[str, Any], name: str = "e") -> SteeringEvent:
        return SteeringEvent(
            session_id="s",
            task_id="t",
            event_id=name,
            event_type=kind,
            payload=payload,
            trace_id="trace",
        )

    contexts = store.contexts
    one = await contexts.apply_context_patch("s", patch("one"), strategy=GATED)
    two = await contexts.apply_context_patch("s", patch("two"), strategy=GATED)
    for kind, payload in (
        (SteeringEventType.PAUSE, {"patch_id": one.patch_id}),
        (SteeringEventType.APPROVE, {"resume_token": "x"}),
        (SteeringEventType.REJECT, {"patch_id": 5}),
    ):
        assert await contexts.resolve_by_steering(event(kind, payload)) is None
    approve = event(SteeringEventType.APPROVE, {"patch_id": one.patch_id})
    outcomes = await asyncio.gather(*(contexts.resolve_by_steering(approve) for _ in range(4)))
    assert [each.status for each in outcomes if each] == ["applied"] * 4
    assert [each.first for each in outcomes if each].count(True) == 1
    reject = event(SteeringEventType.REJECT, {"patch_id": two.patch_id}, "f")
    rejected = await contexts.resolve_by_steering(reject)
    assert rejected is not None
    assert rejected.status == "rejected"
    with pytest.raises(TokenResolved) as caught:
        await contexts.resolve_by_steering(event(reject.event_type, approve.payload, "g"))
    assert caught.value.actor == "user"
    assert caught.value.decision["event_id"] == "e"
    assert (await store.list_updates("s"))[-1].trace_id == "trace"
    with pytest.raises(TokenUnknown):
        await contexts.resolve_by_steering(event(reject.event_type, {"patch_id": "none"}, "h"))


@pytest.mark.parametrize(
    ("field", "bad", "more"),
    [
        ("strategy", patch(), {"strategy": "merge"}),
        ("patch", {"task_id": "t"}, {}),
        ("task_id", unchecked(task_id=5), {}),
        ("group_id", patch(), {"group_id": 5}),
        ("patch_id", patch(), {"patch_id": 5}),
        (
            "completed_at",
            unchecked(task_id="t", completed_at="now"),
            {"strategy": GATED},
        ),
    ],
)
async def test_bad_input_is_refused_by_name(
    store: RedisStateStore, field: str, bad: Any, more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.contexts.apply_context_patch("s", bad, **more)
    assert caught.value.field == field
    assert await keys_of(store) == []


async def test_an_approval_cannot_ask_for_another_decision(store: RedisStateStore) -> None:
    requested = await store.contexts.apply_context_patch("s", patch(), strategy=GATED)
    with pytest.raises(InvalidField, match="strategy"):
        await store.contexts.apply_pending_patch("s", requested.patch_id, strategy=GATED)
    assert list(await store.contexts.pending_patches("s")) == [requested.patch_id]


async def test_a_damaged_patch_is_set_aside_and_the_others_are_listed(
    store: RedisStateStore,
) -> None:
    one = await store.contexts.apply_context_patch("s", patch(), strategy=GATED)
    two = await store.contexts.apply_context_patch("s", patch(), strategy=GATED)
    key = store.base.keys.patch("s", one.patch_id)
    await admin(store, "HSET", key, "payload", "garbage")
    assert list(await store.contexts.pending_patches("s")) == [two.patch_id]
    with pytest.raises(TokenUnknown):
        await store.contexts.apply_pending_patch("s", one.patch_id)
    assert len(await store.unreadable(session_id="s")) == 1


async def test_a_context_that_never_stands_still_ends_in_a_conflict(
    store: RedisStateStore, settings: Settings
) -> None:
    async def move() -> None:
        await store.contexts.update_context("s", llm_context={"n": moves.fired})

    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url)) as far,
    ):
        with (
            proxy.meanwhile("apply_patch", move, times=None) as moves,
            pytest.raises(VersionConflict),
        ):
            await far.contexts.apply_context_patch("s", patch(), timeout_s=1)
    assert moves.fired > 1
    found = await store.contexts.load("s")
    assert found is not None
    assert found.background_results == {}


async def test_a_lost_reply_changes_nothing_twice(settings: Settings) -> None:
    async with (
        RedisStateStore(settings) as beside,
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=SecretStr(proxy.url)) as store,
    ):
        contexts = store.contexts
        requested = await contexts.apply_context_patch("s", patch("gated"), strategy=GATED)
        applied = await _losing_its_reply(
            store, beside, proxy, contexts.apply_context_patch("s", patch("one"), payload=1)
        )
        approved = await _losing_its_reply(
            store, beside, proxy, contexts.apply_pending_patch("s", requested.patch_id)
        )
        assert (applied.status, applied.first, applied.revision) == ("applied", True, 1)
        assert (approved.status, approved.first, approved.revision) == ("applied", True, 2)
        assert [update.content["title"] for update in approved.updates] == ["Context updated"]
        assert proxy.cuts == 2
        found = await beside.contexts.load("s")
        assert found is not None
        assert list(found.background_results) == ["one", "gated"]
        assert await stated(beside) == [
            ("CHECKPOINT", "context_patch"),
            ("NOTIFICATION", "Context updated"),
        ]


async def _losing_its_reply(
    store: RedisStateStore, beside: RedisStateStore, proxy: Proxy, call: Coroutine[Any, Any, T]
) -> T:
    """Make a call whose script runs and whose answer never comes; then it is sent again."""
    key = store.base.keys.context("s")

    async def version() -> int:
        return int(await admin(beside, "HGET", key, "version") or 0)

    before, swallowed = await version(), proxy.swallowed
    ran = asyncio.create_task(_silent_from_its_script_on(store, proxy, call))

    async def lost() -> bool:
        return await version() > before and proxy.swallowed > swallowed

    await eventually(lost, "the script has run and its answer is lost")
    proxy.silence(silent=False)
    assert proxy.cut() > 0
    return await ran


async def _silent_from_its_script_on(
    store: RedisStateStore, proxy: Proxy, call: Coroutine[Any, Any, T]
) -> T:
    """Swallow what the server answers from the first script of a call on."""
    scripts: Any = store.base.scripts
    run = scripts._run_prepared

    async def silently(*given: Any) -> Any:
        proxy.silence()
        scripts._run_prepared = run
        return await run(*given)

    scripts._run_prepared = silently
    return await call


@pytest.mark.slow
async def test_of_8_processes_with_50_patches_each_every_one_comes_in(
    store: RedisStateStore, settings: Settings
) -> None:
    arguments = [
        {**shared(settings), "does": "apply", "name": f"w{n}", "times": 50, "processes": 8}
        for n in range(8)
    ]
    ran = await run_processes("use_session", arguments)
    reported = dict(pair for pairs in ran for pair in pairs)
    wanted = {f"w{n}-{number}": number for n in range(8) for number in range(50)}
    found = await store.contexts.load("s")
    assert found is not None
    results = found.background_results
    assert {name: result.facts["number"] for name, result in results.items()} == wanted
    assert {name: result.payload for name, result in results.items()} == {
        name: [number] for name, number in wanted.items()
    }
    # 400 patches and 40 updates: 440 revisions, each given once, and results in that order.
    assert found.version == 40
    assert found.context_hash == hash_context(found.llm_context)
    revisions = list(reported.values())
    assert len(set(revisions)) == 400
    assert set(revisions) < set(range(1, 441))
    assert list(results) == sorted(reported, key=lambda name: reported[name])
    assert await admin(store, "HGET", store.base.keys.context("s"), "version") == b"440"


@pytest.mark.slow
async def test_of_32_deciders_in_4_processes_one_decides(
    store: RedisStateStore, settings: Settings
) -> None:
    won: list[str] = []
    for number in range(2):
        task_id = f"t{number}"
        requested = await store.contexts.apply_context_patch("s", patch(task_id), strategy=GATED)
        await admin(store, "DEL", f"{settings.namespace}:v1:{{start}}:start")
        common = {"does": "decide", "callers": 8, "processes": 4, "patch_id": requested.patch_id}
        arguments = [{**shared(settings), **common, "name": f"w{n}"} for n in range(4)]
        ran = [
            reported for each in await run_processes("use_session", arguments) for reported in each
        ]
        assert len(ran) == 32
        [(_, actor, status)] = [reported for reported in ran if reported[0] == "won"]
        assert {tuple(reported) for reported in ran if reported[0] == "lost"} == {
            ("lost", actor, status)
        }
        found = await store.contexts.load("s")
        results = {} if found is None else found.background_results
        assert (task_id in results) == (status == "applied")
        won.append(status)
    assert await store.contexts.pending_patches("s") == {}
    titles = {"applied": "Context updated", "rejected": "Context patch rejected"}
    reported = [title for kind, title in await stated(store) if kind == "NOTIFICATION"]
    assert reported == [titles[status] for status in won]


@pytest.mark.chaos
@pytest.mark.parametrize("after", [False, True])
async def test_a_process_that_dies_at_a_decision_leaves_all_of_it_or_nothing(
    store: RedisStateStore, settings: Settings, *, after: bool
) -> None:
    requested = await store.contexts.apply_context_patch("s", patch(), strategy=GATED, payload=1)
    common = {**shared(settings), "does": "crash", "patch_id": requested.patch_id, "after": after}
    for name, script in (("approve", "resolve_patch"), ("apply", "apply_patch")):
        argument = {**common, "call": name, "script": script}
        if name == "apply":
            argument["patch_id"] = "other"
        process = await start_process("use_session", argument)
        _, err = await process.communicate()
        assert process.returncode == -9, err.decode()
    waiting = await store.contexts.pending_patches("s")
    assert list(waiting) == ([] if after else [requested.patch_id])
    found = await store.contexts.load("s")
    assert (found is not None) == after
    # Whoever goes on with the dead one's work repeats its calls, and all is done once.
    approved = await store.contexts.apply_pending_patch(
        "s", requested.patch_id, idempotency_key="mine"
    )
    again = await store.contexts.apply_context_patch("s", patch(), payload=1, patch_id="other")
    assert (approved.status, approved.first) == ("applied", not after)
    assert (again.status, again.first) == ("applied", not after)
    found = await store.contexts.load("s")
    assert found is not None
    assert list(found.background_results) == ["t"]
    assert await admin(store, "HGET", store.base.keys.context("s"), "version") == b"2"
