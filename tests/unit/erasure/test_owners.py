"""Whose a memory is: by its key alone, whatever the ids are."""

from __future__ import annotations

import asyncio

import pytest

from redis_state import RedisStateStore
from redis_state.erasure import Eraser
from redis_state.erasure.walking import owner_of_memory
from redis_state.errors import BackendUnavailable
from redis_state.memory.keys import MemoryKey
from redis_state.stores.memory.kv_entry import KVScope, Owner
from redis_state.transport.key_text import escape

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
