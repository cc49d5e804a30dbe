"""Sessions whose tasks have no attributes: memories and artifacts say whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.erasure import Eraser
from redis_state.erasure.user import UserErasure
from redis_state.errors import StreamUnknown
from redis_state.memory.keys import MemoryKey
from redis_state.models.artifacts import ArtifactScope
from redis_state.models.streams import StreamOrigin
from redis_state.worker import TaskClient
from tests.support.erasure import nothing_is_left
from tests.support.samples import ODD_IDS, task
from tests.support.scripts.replies import ask

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


async def test_a_stream_that_another_makes_during_an_erasure_stays(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, read = store.streams, UserErasure._kept_streams
    await streams.create("room", creator="ann")
    made: list[bool] = []

    async def read_before_it_is_made(self: UserErasure, names: Sequence[str]) -> Any:
        kept = await read(self, names)
        if kept and not made:
            await streams.delete("room")
            made.append((await streams.create("room", data=b"of bob", creator="bob"))[1])
        return kept

    monkeypatch.setattr(UserErasure, "_kept_streams", read_before_it_is_made)
    async with Eraser(store) as eraser:
        await eraser.forget_user("ann")
    assert made == [True]
    assert (await streams.read("room")).rows == (b"of bob",)


# A user is named by at most 256 bytes.
USERS = [each for each in ODD_IDS if 0 < len(each) < 64]


@pytest.mark.parametrize("user", USERS, ids=range(len(USERS)))
async def test_of_users_with_any_name_the_own_durable_streams_go(
    store: RedisStateStore, user: str
) -> None:
    creators = [user, user + "2", user.swapcase() + "!", f'{user}","room']
    for number, creator in enumerate(creators):
        await store.streams.create(f"room {number} {{}}%:\u00e9", creator=creator)
    async with Eraser(store) as eraser:
        report = await eraser.forget_user(user)
    assert report.redis == {"durable streams": 1}
    with pytest.raises(StreamUnknown):
        await store.streams.look("room 0 {}%:\u00e9")
    for number in range(1, len(creators)):
        await store.streams.look(f"room {number} {{}}%:\u00e9")


async def test_a_users_durable_streams_go_and_those_that_others_made_at_their_paths_stay(
    store: RedisStateStore,
) -> None:
    """A stream knows its creator, whose list may be older, or not there."""
    streams, created = store.streams, store.streams.created_by("ann", most=9)
    long = "x" * 500
    for path in ("room", "of-ann", "of-nobody", "older", long):
        assert await created.claim(path) is not None
        await streams.create(path, creator=None if path == "of-nobody" else "ann")
        await created.made(path)
    await streams.create("unlisted", creator="ann")
    # One that has forks stays as a mark: it has no content.
    await streams.create("forked", creator="ann")
    await streams.create("fork", origin=StreamOrigin("forked"), creator="bob")
    await streams.delete("forked")
    mark = store.base.keys.stream("forked").info
    assert b"ann" not in b" ".join(await ask(store.base.scripts, "HGETALL", mark))
    # Another caller deletes a stream, and makes one there.
    await streams.delete("room")
    await streams.create("room", data=b"of bob", creator="bob")
    # An earlier version did not say in the stream who has created it.
    await ask(store.base.scripts, "HDEL", store.base.keys.stream("older").info, "creator")
    async with Eraser(store) as eraser:
        counted = await eraser.forget_user("ann", dry_run=True)
        assert (await streams.look("of-ann")).path == "of-ann"
        report = await eraser.forget_user("ann")
        again = await eraser.forget_user("ann", dry_run=True)
    assert counted.redis == report.redis == {"durable streams": 4}
    assert again.redis == {}
    for path in ("of-ann", "older", "unlisted", long):
        with pytest.raises(StreamUnknown):
            await streams.look(path)
    assert (await streams.read("room")).rows == (b"of bob",)
    for path in ("of-nobody", "fork"):
        assert (await streams.look(path)).path == path
    assert not await store.transport.commands.exists(store.base.keys.streams_of("ann"))
