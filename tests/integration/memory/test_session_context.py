"""A session's context: parts, version, hash, results."""

from __future__ import annotations

import asyncio
from dataclasses import make_dataclass
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore, Settings, VersionConflict
from redis_state.models.session_context import (
    BackgroundTaskResult,
    ContextPatch,
    SessionContext,
    hash_context,
)
from redis_state.testing import eventually
from tests.support.samples import STORED_STRANGE, admin, changed, keys_of, strange


async def test_a_session_without_a_context_has_none(store: RedisStateStore) -> None:
    assert await store.contexts.load("s") is None
    assert await store.contexts.mark_background_consumed("s", task_ids=["t"]) == 0
    assert await keys_of(store) == []


async def test_an_update_replaces_a_part_and_counts(store: RedisStateStore) -> None:
    contexts = store.contexts
    first = hash_context({"goal": 1})
    assert await contexts.update_context("s", llm_context={"goal": 1}) == (1, first)
    assert await contexts.update_context("s", tool_context={"tool": 2}) == (2, first)
    assert await contexts.update_context("s", llm_context={}) == (3, hash_context({}))
    assert await contexts.load("s") == SessionContext(
        llm_context={}, tool_context={"tool": 2}, version=3, context_hash=hash_context({})
    )
    assert await contexts.load("another") is None


async def test_an_update_of_nothing_counts_and_hashes_as_upstream_does(
    store: RedisStateStore,
) -> None:
    assert await store.contexts.update_context("s") == (1, hash_context({}))


async def test_an_update_may_ask_for_the_version_it_read(store: RedisStateStore) -> None:
    contexts = store.contexts
    assert (await contexts.update_context("s", llm_context={"n": 1}, expected_version=0))[0] == 1
    with pytest.raises(VersionConflict) as caught:
        await contexts.update_context("s", llm_context={"n": 2}, expected_version=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    await contexts.apply_context_patch("s", ContextPatch(task_id="t"))
    assert (await contexts.update_context("s", llm_context={"n": 2}, expected_version=1))[0] == 2


async def test_each_part_says_which_write_it_is_from(store: RedisStateStore) -> None:
    contexts = store.contexts

    async def writes() -> dict[str, str]:
        found = await contexts.load_with_writes("s")
        assert found is not None
        return found[1]

    await contexts.update_context(
        "s", llm_context={"n": 1}, tool_context={}, idempotency_key="\ud800"
    )
    first = await writes()
    assert first["llm_context"] == first["tool_context"] == "\ud800"
    assert await contexts.update_context("s", llm_context={"n": 1}, idempotency_key="\ud800") == (
        1,
        hash_context({"n": 1}),
    )
    await contexts.update_context("s", llm_context={"n": 1})
    second = await writes()
    assert second["tool_context"] == "\ud800"
    assert second["llm_context"] not in first.values()
    await contexts.apply_context_patch("s", ContextPatch(task_id="t"))
    assert await writes() == second


async def test_parts_of_a_context_of_an_earlier_release_are_as_old_as_the_context(
    store: RedisStateStore,
) -> None:
    await store.contexts.update_context("s", llm_context={"n": 1}, tool_context={})
    fields = ("llm_context:write", "tool_context:write")
    assert await admin(store, "HDEL", store.base.keys.context("s"), *fields) == 2
    found = await store.contexts.load_with_writes("s")
    assert found is not None
    assert set(found[1].values()) == {"1"}


async def test_a_whole_context_is_saved_and_loses_no_result(store: RedisStateStore) -> None:
    contexts = store.contexts
    await contexts.apply_context_patch("s", ContextPatch(task_id="a", digest=["brought"]))
    context = SessionContext(
        {"l": 1}, {"t": 2}, {"m": 3}, [{"a": 4}], {"b": BackgroundTaskResult("b", completed_at=5.0)}
    )
    assert await contexts.save("s", context, expected_version=0) == (1, hash_context({"l": 1}))
    found = await contexts.load("s")
    assert found is not None
    assert (found.llm_context, found.tool_context) == ({"l": 1}, {"t": 2})
    assert (found.memory, found.artifacts) == ({"m": 3}, [{"a": 4}])
    assert list(found.background_results) == ["a", "b"]
    assert found.background_results["b"] == context.background_results["b"]
    with pytest.raises(VersionConflict):
        await contexts.save("s", context, expected_version=0)
    assert (await contexts.save("s", found, expected_version=found.version))[0] == 2


async def test_inline_results_are_taken_out_of_the_context(store: RedisStateStore) -> None:
    inline = {"goal": 1, "background_results": [{"task_id": "a", "digest": ["x", "y"]}]}
    _, context_hash = await store.contexts.update_context("s", llm_context=inline)
    found = await store.contexts.load("s")
    assert found is not None
    assert found.llm_context == {"goal": 1}
    assert context_hash == hash_context({"goal": 1})
    assert found.background_results["a"].summary == "x y"
    assert inline["background_results"]
    odd = [5, None, "x", {"task_id": ""}, {"task_id": "b"}, {"task_id": "c", "digest": "no list"}]
    await store.contexts.update_context("s", llm_context={"background_result": odd})
    found = await store.contexts.load("s")
    assert found is not None
    assert list(found.background_results) == ["a", "b", "c"]
    assert found.background_results["c"].summary is None


async def test_consumed_results_are_gone_once(store: RedisStateStore) -> None:
    for task_id in ("a", "b", "c"):
        await store.contexts.apply_context_patch("s", ContextPatch(task_id=task_id))
    consume = store.contexts.mark_background_consumed
    assert await consume("s", task_ids=["a", "a", "c", "never was"]) == 2
    assert await consume("s", task_ids=["a", "c"]) == 0
    assert await consume("s", task_ids=[]) == 0
    found = await store.contexts.load("s")
    assert found is not None
    assert list(found.background_results) == ["b"]


async def test_a_context_may_hold_anything_but_then_has_no_hash(store: RedisStateStore) -> None:
    assert await store.contexts.update_context("s", llm_context=strange()) == (1, None)
    found = await store.contexts.load("s")
    assert found is not None
    assert found.llm_context == STORED_STRANGE
    assert found.context_hash is None


@pytest.mark.parametrize("part", ["llm_context", "tool_context"])
async def test_a_part_of_another_kind_is_refused_by_name(store: RedisStateStore, part: Any) -> None:
    bad: dict[str, Any] = {part: ["no mapping"]}
    with pytest.raises(InvalidField) as caught:
        await store.contexts.update_context("s", **bad)
    assert caught.value.field == part
    wrong: Any = SessionContext()
    wrong.artifacts = {}
    with pytest.raises(InvalidField, match="artifacts"):
        await store.contexts.save("s", wrong)
    wrong = SessionContext()
    wrong.background_results = []
    with pytest.raises(InvalidField, match="background_results"):
        await store.contexts.save("s", wrong)
    assert await keys_of(store) == []


async def test_a_damaged_context_is_set_aside(store: RedisStateStore) -> None:
    await store.contexts.update_context("s", llm_context={"a": 1})
    await admin(store, "HSET", store.base.keys.context("s"), "llm_context", "garbage")
    assert await store.contexts.load("s") is None
    assert [each.place for each in await store.unreadable(session_id="s")] == ["context"]


async def test_a_context_lives_as_long_as_it_is_set_to(settings: Settings) -> None:
    async with changed(settings, contexts_ttl="PT0.05S") as store:
        await store.contexts.update_context("s", llm_context={"a": 1})

        async def gone() -> bool:
            return await store.contexts.load("s") is None

        await eventually(gone, "the context expires")


async def test_a_cleared_session_has_no_context_and_no_groups(store: RedisStateStore) -> None:
    await store.contexts.update_context("s", llm_context={"a": 1})
    await store.contexts.apply_context_patch("s", ContextPatch(task_id="t"), strategy=GATED)
    await store.groups.open("s", name="crew")
    await store.clear_session("s")
    assert await store.contexts.load("s") is None
    assert await store.contexts.pending_patches("s") == {}
    assert await store.groups.list("s") == []
    left = {key.partition("}:")[2] for key in await keys_of(store)}
    assert left == {"updates:ids"}


GATED: Any = "human_gated"


async def test_a_save_that_was_begun_is_carried_out_though_its_caller_is_cancelled(
    store: RedisStateStore,
) -> None:
    saving = asyncio.create_task(store.contexts.update_context("s", llm_context={"a": 1}))
    await asyncio.sleep(0)  # begun, and not sent: there is no connection yet
    assert saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    found = await store.contexts.load("s")
    assert found is not None
    assert found.llm_context == {"a": 1}


async def test_a_result_that_nobody_could_read_is_refused(store: RedisStateStore) -> None:
    await store.contexts.update_context("s", llm_context={"a": 1})
    results: Any = {"t": {"summary": "of no task"}}
    with pytest.raises(InvalidField, match="background_results"):
        await store.contexts.save("s", SessionContext(background_results=results))
    results = {5: BackgroundTaskResult("t")}
    with pytest.raises(InvalidField, match="background_results"):
        await store.contexts.save("s", SessionContext(background_results=results))
    assert (await store.contexts.load("s")) is not None


async def test_a_hosts_own_result_may_have_further_fields(store: RedisStateStore) -> None:
    more = ("more", str, "")
    own: Any = make_dataclass("BackgroundTaskResult", [more], bases=(BackgroundTaskResult,))
    results: Any = {"t": own(task_id="t", summary="done", more="of a later release")}
    await store.contexts.save("s", SessionContext(background_results=results))
    found = await store.contexts.load("s")
    assert found is not None
    assert found.background_results["t"].summary == "done"
