"""What PenguiFlow limits is refused here in its words: callers look for them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.artifacts import ArtifactRetentionConfig, InMemoryArtifactStore
from penguiflow.planner import memory as theirs
from penguiflow.sessions import ContextPatch, MergeStrategy, SessionLimits, StreamingSession
from penguiflow.state import InMemoryStateStore

from redis_state import Settings, memory
from redis_state.integrations.penguiflow import create_memory, create_store
from redis_state.integrations.penguiflow.sessions import open_session

PATCH = ContextPatch(task_id="task")
GATED = MergeStrategy.HUMAN_GATED
TURN = theirs.ConversationTurn(user_message="x" * 99, assistant_response="")


async def stated(call: Awaitable[Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        await call
    return str(caught.value)


def host(settings: Settings, **options: Any) -> Any:
    url = settings.url.get_secret_value()
    return create_store(url=url, namespace=settings.namespace, **options)


async def test_an_artifact_that_is_too_large_exceeds_the_limit(settings: Settings) -> None:
    retention = ArtifactRetentionConfig(max_artifact_bytes=10)
    stores = [InMemoryArtifactStore(retention=retention)]
    async with host(settings, artifact_retention=retention) as own:
        for store in (*stores, own.artifact_store):
            for call in (store.put_bytes(b"x" * 11), store.put_text("é" * 6)):
                assert "exceeds limit (10 bytes)" in await stated(call, ValueError)


async def test_one_pending_patch_too_many_is_refused_by_the_name_of_the_limit(
    settings: Settings,
) -> None:
    limits = SessionLimits(max_pending_patches=1)
    reference = StreamingSession("s", state_store=InMemoryStateStore(), limits=limits)
    await reference.apply_context_patch(patch=PATCH, strategy=GATED)
    code = await stated(reference.apply_context_patch(patch=PATCH, strategy=GATED), RuntimeError)
    async with host(settings, max_pending_patches=1) as own, open_session(own, "s") as session:
        await session.apply_context_patch(patch=PATCH, strategy=GATED)
        for call in (
            session.apply_context_patch(patch=PATCH, strategy=GATED),
            own.contexts.apply_context_patch("s", PATCH, strategy=GATED),
        ):
            assert code in await stated(call, RuntimeError)


@pytest.mark.parametrize("strategy", ["truncation", "rolling_summary"])
async def test_a_turn_beyond_the_budget_is_refused_in_the_same_words(
    settings: Settings, strategy: Any
) -> None:
    async def summarize(_: Any) -> Any:
        return {"summary": ""}

    budget = theirs.MemoryBudget(summary_max_tokens=1, total_max_tokens=20, overflow_policy="error")
    config = theirs.ShortTermMemoryConfig(strategy=strategy, budget=budget)
    reference = theirs.DefaultShortTermMemory(config=config, summarizer=summarize)
    words = await stated(reference.add_turn(TURN), theirs.MemoryBudgetExceeded)
    async with host(settings) as own:
        shared = create_memory(config, summarizer=summarize)
        await shared.hydrate(own, "t:u:s")
        assert words in await stated(shared.add_turn(TURN), theirs.MemoryBudgetExceeded)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("MemoryBudget", {"full_zone_turns": -1}),
        ("MemoryBudget", {"summary_max_tokens": -1}),
        ("MemoryBudget", {"total_max_tokens": -1}),
        ("MemoryBudget", {"summary_max_tokens": 11, "total_max_tokens": 10}),
        ("MemoryBudget", {"overflow_policy": "burst"}),
        ("MemoryIsolation", {"user_key": ""}),
        ("ShortTermMemoryConfig", {"strategy": "guess"}),
        ("ShortTermMemoryConfig", {"retry_attempts": -1}),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_the_same_words(
    kind: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="must be") as upstream:
        getattr(theirs, kind)(**options)
    with pytest.raises(ValueError, match="must be") as own:
        getattr(memory, kind)(**options)
    assert str(own.value) == str(upstream.value)
