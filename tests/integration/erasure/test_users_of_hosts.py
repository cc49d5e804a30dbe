"""Sessions whose tasks have no attributes: memories and artifacts say whose they are."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.erasure import Eraser
from redis_state.memory.keys import MemoryKey
from redis_state.models.artifacts import ArtifactScope
from redis_state.worker import TaskClient
from tests.support.erasure import nothing_is_left
from tests.support.samples import task

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


async def remember(store: RedisStateStore, user: str, session: str) -> None:
    await store.save_memory_state(MemoryKey("tenant", user, session).composite(), {"n": 1})


async def test_a_session_that_the_key_of_a_memory_names_goes_with_its_tasks(
    store: RedisStateStore,
) -> None:
    for session in ("of-ann", "of-bob", "of-both", "of-nobody"):
        await store.save_task(task("t", session))
    for user, session in (("ann", "of-ann"), ("bob", "of-bob")):
        await remember(store, user, session)
        await remember(store, user, "of-both")
    await store.kv.bind(
        {"tenant_id": "t", "user_id": "ann", "session_id": "of:kv", "task_id": "x", "trace_id": "y"}
    ).set("k", "v", namespace="n")
    async with Eraser(store) as eraser:
        counted = await eraser.forget_user("ann", dry_run=True)
        report = await eraser.forget_user("ann")
    assert counted.sessions == report.sessions == ["of-ann", "of:kv"]
    # Each memory once: those of the two sessions, and the user's own of the shared one.
    assert counted.redis == report.redis
    assert (report.redis["tasks"], report.redis["memories"]) == (1, 3)
    assert "1 sessions are of other users too: 'of-both'" in report.kept["shared sessions"]
    assert "by their ids" in report.kept["sessions that name nobody"]
    await nothing_is_left(store, "of-ann")
    for session in ("of-bob", "of-both", "of-nobody"):
        assert len(await store.list_tasks(session)) == 1


async def test_a_memory_does_not_hand_over_the_session_of_another_users_tasks(
    store: RedisStateStore,
) -> None:
    async with TaskClient(store) as client:
        for session, user in (("s", "bob"), ("anonymous", "ann")):
            await client.submit("h", session_id=session, attributes={"user": user})
        await remember(store, "ann", "s")
        # What a host says that knows no user is no other user of the session.
        await remember(store, "anonymous", "anonymous")
        report = await client.forget_user("ann")
    assert report.sessions == ["anonymous"]
    assert "'s'" in report.kept["shared sessions"]
    assert len(await store.list_tasks("s")) == 1


async def test_a_session_that_the_scope_of_an_artifact_names_goes_too(
    store: RedisStateStore,
) -> None:
    # One without a name is of no other user.
    for user, session in (("ann", "s1"), ("", "s1"), ("bob", "s2"), ("ann", None)):
        scope = ArtifactScope(user_id=user, session_id=session)
        await store.artifact_store.put_text(f"of {user}", filename=user, scope=scope)
    await store.save_task(task("t", "s1"))
    async with Eraser(store) as eraser:
        report = await eraser.forget_user("ann")
    assert (report.sessions, report.redis["tasks"], report.redis["artifacts"]) == (["s1"], 1, 2)
    assert report.kept["artifacts without a session"].startswith("1 artifacts name the user")
    assert sorted(str(ref.filename) for ref in await store.artifact_store.list()) == ["ann", "bob"]
