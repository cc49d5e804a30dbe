"""Whose a memory is: by its key alone, whatever the ids are."""

from __future__ import annotations

import asyncio

import pytest

from redis_state import RedisStateStore
from redis_state.erasure import Eraser
from redis_state.erasure.walking import owner_of_memory, session_of_task
from redis_state.errors import BackendUnavailable
from redis_state.memory.keys import MemoryKey, agent_messages, heard_steering
from redis_state.stores.memory.kv_entry import KVScope, Owner
from redis_state.transport.key_text import escape
from redis_state.transport.keys import graph_task

IDS = ("a", "a:b", "a:b:c", "x/y%3A", "ü\n", "session", "task:")


@pytest.mark.parametrize("session", IDS)
@pytest.mark.parametrize("scope", ["session", "task"])
def test_an_entry_is_of_its_own_session(session: str, scope: KVScope) -> None:
    entry = Owner("t", "u", session, "task", "trace").key("k", scope=scope, namespace="n:m")
    assert owner_of_memory(escape("key", entry)) == MemoryKey("t", "u", session)


@pytest.mark.parametrize("user", IDS)
def test_a_memory_is_of_its_own_user(user: str) -> None:
    key = MemoryKey("t", user, "s").composite()
    assert owner_of_memory(escape("key", key)) == MemoryKey("t", user, "s")


def test_an_eraser_may_be_made_outside_of_a_loop() -> None:
    eraser = Eraser(RedisStateStore.from_url("redis://localhost:1"))
    with pytest.raises(BackendUnavailable):
        asyncio.run(eraser.forget("session"))


@pytest.mark.parametrize("session", [*IDS, "a/b", "1:a/b", "\ud800"])
def test_what_a_framework_keeps_names_its_session(session: str) -> None:
    for key in (agent_messages("clerk:1", session), heard_steering(session, "t:1:2")):
        assert owner_of_memory(escape("key", key)) == MemoryKey("", "", session)
    thread = escape("thread_id", graph_task(session, "t/1"))
    assert session_of_task(thread) == session


@pytest.mark.parametrize(
    "name", ["", "s", "1:", "2:a", "2:a/", "-1:a/b", "x:a/b", "²:ab/c", "x" * 200]
)
def test_another_name_is_of_no_task(name: str) -> None:
    assert session_of_task(escape("thread_id", name)) is None
