"""What is left of a session or a user: every name and every value of a server is searched."""

from __future__ import annotations

from typing import Any, cast

from redis_state import RedisStateStore
from redis_state.memory.keys import MemoryKey
from redis_state.models import ArtifactScope, Trajectory
from redis_state.models.session_context import ContextPatch, MergeStrategy
from redis_state.testing import eventually
from redis_state.transport.key_text import escape
from redis_state.transport.keys import artifact_place
from tests.support.samples import admin, binding, event, planner_event, steering, task, update

_READS = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1),
    b"stream": ("XRANGE", "-", "+"),
}


async def fill(store: RedisStateStore, session: str, trace: str) -> None:
    """Save of a session whatever a host may save."""
    await store.save_task(task("host-task", session))
    await store.save_update(update("u1", 1, session_id=session, task_id="host-task"))
    await store.save_steering(steering("e1", session_id=session, task_id="another"))
    await store.save_trajectory(trace, session, Trajectory("q"))
    await store.save_event(event(trace_id=trace))
    await store.save_planner_event(trace, planner_event())
    await store.save_remote_binding(binding(trace_id=trace, router_session_id=session))
    await store.artifact_store.put_bytes(b"bytes", scope=ArtifactScope(session_id=session))
    await store.contexts.apply_context_patch(
        session, ContextPatch(task_id="t", digest=["one"]), strategy=MergeStrategy.APPEND
    )
    await store.contexts.apply_context_patch(
        session, ContextPatch(task_id="g", digest=["two"]), strategy=MergeStrategy.HUMAN_GATED
    )
    await store.save_memory_state(MemoryKey("t", "u", session).composite(), {"of": "memory"})
    await store.save_memory_state(session, {"of": "memory"})


async def remains(store: RedisStateStore, needle: str) -> list[str]:
    """List the keys that have a text in their name or in their value, of the store's namespace."""
    wanted = {needle.encode("utf-8", "surrogatepass"), escape("id", needle).encode()}
    wanted.add(artifact_place(needle).encode())
    found: list[str] = []
    for server in await store.transport.each_primary():
        async for page in server.scan_all("*"):
            for key in page:
                if store.settings.namespace.encode() not in key:
                    continue
                kind: bytes = await admin(store, "TYPE", key)
                if kind == b"none":
                    continue
                verb, *rest = _READS[kind]
                parts = [key, *_flat(await admin(store, str(verb), key, *rest))]
                if any(each in part for part in parts for each in wanted):
                    found.append(key.decode("latin-1"))
    return sorted(set(found))


async def left_over(store: RedisStateStore, needle: str) -> list[str]:
    """List what has a text, but for what a report says that it leaves."""
    return [
        key
        for key in await remains(store, needle)
        if ":worker:" not in key and not (":call:" in key and "{queues-" in key)
    ]


async def nothing_is_left(store: RedisStateStore, needle: str) -> None:
    """Search everything but what a report says that it leaves."""
    found: list[str] = []

    async def is_gone() -> bool:
        found[:] = await left_over(store, needle)
        return not found

    try:
        # A sweeper may just have claimed an entry.
        await eventually(is_gone, described="nothing is left", timeout_s=20)
    except AssertionError:
        assert not found, found


def _flat(value: Any) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, list | tuple):
        return [each for part in cast("list[Any]", value) for each in _flat(part)]
    if isinstance(value, dict):
        pairs: Any = cast("Any", value)
        return _flat([part for pair in pairs.items() for part in pair])
    return [str(value).encode()]
