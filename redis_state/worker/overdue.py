"""Pauses that nobody has resolved in time."""

from __future__ import annotations

from typing import Any

from redis_state import codec
from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.worker.life import TaskLife


async def expire_pauses(store: RedisStateStore, session_id: str, task_id: str) -> int | None:
    """Fail a paused task if its token has expired; return the ms until it does, None if none waits.

    By the server's clock: a token that has expired can be resolved by nobody, so nobody's decision
    is lost. Safe to repeat, and when many do it at once.
    """
    tokens = await _open_tokens(store, session_id, task_id)
    left = [await _left_ms(store, token) for token in tokens]
    if left and max(left) > 0:
        return max(left)
    state = await store.tasks.load(session_id, task_id)
    if state is not None and state.status.value == TaskStatus.PAUSED.value:
        await TaskLife(store).expire(state, "nobody resolved its pause in time")
    return None


async def _open_tokens(store: RedisStateStore, session_id: str, task_id: str) -> list[str]:
    sender = store.transport.sender
    journal = store.tasks.keys(session_id, task_id).journal
    flat: list[bytes] = await sender.send("HGETALL", journal, repeatable=True)
    notes: list[Any] = [
        codec.decode(note)
        for name, note in zip(flat[::2], flat[1::2], strict=True)
        if name.startswith(b"pause:")
    ]
    return [note["token"] for note in notes if note["state"] == "open"]


async def _left_ms(store: RedisStateStore, token: str) -> int:
    key = store.base.keys.session_token(token)
    if key is None:
        return 0
    sender = store.transport.sender
    clock = sender.send("TIME", repeatable=True)
    expires: bytes | None = await sender.send("HGET", key, "expires", repeatable=True)
    seconds, micros = map(int, await clock)
    return int(expires or 0) - (seconds * 1000 + micros // 1000)
