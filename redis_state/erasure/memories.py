"""Delete memories, with the artifacts in which key-value entries keep large values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis_state.erasure.walking import FoundKey
from redis_state.store import RedisStateStore
from redis_state.transport.key_text import escape, unescape

_TOGETHER = 64


async def delete_memories(store: RedisStateStore, memories: Sequence[FoundKey]) -> None:
    """Delete memories. Large values go first: an entry is what finds its value again."""
    for key in memories:
        if key.tag.startswith(escape("key", "kv:")):
            await _delete_large_value(store, unescape(key.tag))
    commands = store.transport.commands
    for start in range(0, len(memories), _TOGETHER):
        some = memories[start : start + _TOGETHER]
        await asyncio.gather(*(commands.unlink(key.name) for key in some))


async def _delete_large_value(store: RedisStateStore, key: str) -> None:
    state: Any = await store.load_memory_state(key)
    try:
        ref: Any = state["value"]["artifact_ref"]["id"]
    except (TypeError, KeyError):
        return
    await store.artifact_store.delete(str(ref))
