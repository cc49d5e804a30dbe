"""Use a session's context, groups or key-value entries while other processes do; tell what came."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from redis_state import LostRace, RedisStateStore, TokenResolved
from redis_state.models.session_context import ContextPatch
from redis_state.testing import eventually

OWNER = {
    "tenant_id": "acme",
    "user_id": "ann",
    "session_id": "s",
    "task_id": "t",
    "trace_id": "r",
}


async def meet(store: RedisStateStore, argument: dict[str, Any]) -> None:
    """Wait until all processes are here, so that they really race."""
    send, key = store.transport.sender.send, f"{store.settings.namespace}:v1:{{start}}:start"
    # May be repeated: a test may cut the connection already.
    await send("ZADD", key, 0, os.getpid(), repeatable=True)
    await send("PEXPIRE", key, 3_600_000, repeatable=True)

    async def all_here() -> bool:
        return int(await send("ZCARD", key, repeatable=True)) >= int(argument["processes"])

    await eventually(all_here, "all processes have begun", timeout_s=60)


async def apply(store: RedisStateStore, argument: dict[str, Any]) -> list[list[Any]]:
    """Apply patches, each one's task named after it, and update the context now and then."""
    await meet(store, argument)
    name: str = argument["name"]
    done: list[list[Any]] = []
    for number in range(argument["times"]):
        if number % 10 == 0:
            await store.contexts.update_context("s", llm_context={"actor": name, "number": number})
        task_id = f"{name}-{number}"
        patch = ContextPatch(task_id=task_id, facts={"number": number})
        applied = await store.contexts.apply_context_patch("s", patch, payload=[number])
        assert applied.first
        done.append([task_id, applied.revision])
    return done


async def decide(store: RedisStateStore, argument: dict[str, Any]) -> list[list[Any]]:
    """Approve or reject one patch from several callers at once; list what each was told."""
    await meet(store, argument)
    contexts, patch_id = store.contexts, argument["patch_id"]

    async def one(number: int) -> list[Any]:
        actor = f"{argument['name']}-{number}"
        call = contexts.apply_pending_patch if number % 2 else contexts.reject_pending_patch
        try:
            outcome = await call("s", patch_id, actor=actor)
        except TokenResolved as error:
            return ["lost", error.actor, error.decision["status"]]
        assert outcome.first
        return ["won", actor, outcome.status]

    return await asyncio.gather(*map(one, range(argument["callers"])))


async def finish(store: RedisStateStore, argument: dict[str, Any]) -> list[str]:
    """End one's members of a group, and try to seal it; list the calls that completed it."""
    await meet(store, argument)
    completed: list[str] = []

    async def one(task_id: str) -> None:
        step = await store.groups.finish("s", argument["group_id"], task_id, success=True)
        assert step is not None
        if step.completed:
            completed.append(task_id)

    async def seal() -> None:
        step = await store.groups.seal("s", argument["group_id"])
        if step is not None and step.completed:
            completed.append("seal")

    await asyncio.gather(*map(one, argument["tasks"]), seal())
    return completed


async def join(store: RedisStateStore, argument: dict[str, Any]) -> list[str]:
    """Open the group of a name from several callers at once and join it; list its ids."""
    await meet(store, argument)

    async def one(number: int) -> str:
        group = await store.groups.open("s", name="crew", turn_id="turn")
        assert await store.groups.join("s", group.group_id, f"{argument['name']}-{number}")
        return group.group_id

    return await asyncio.gather(*map(one, range(argument["callers"])))


async def count(store: RedisStateStore, argument: dict[str, Any]) -> int:
    """Add to one number with etags, to another by changing it; tell how many races were lost."""
    await meet(store, argument)
    kv, lost = store.kv.bind(OWNER, max_inline_bytes=1024), 0
    for number in range(argument["times"]):
        while True:
            found = await kv.get_entry("by etag")
            value, etag = (found.value, found.etag) if found else (0, "")
            try:
                await kv.set("by etag", value + 1, expected_etag=etag)
                break
            except LostRace:
                lost += 1
        if number % 5:
            continue
        await kv.change("by change", lambda value: (value or 0) + 1)
        await kv.patch("patched", {f"{argument['name']}-{number}": number})
    return lost


async def crash(store: RedisStateStore, argument: dict[str, Any]) -> None:
    """Die just before or just after one script."""
    scripts: Any = store.base.scripts
    script = getattr(scripts, argument["script"])

    async def dying(*given: Any, **named: Any) -> None:
        if argument["after"]:
            await script(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(scripts, argument["script"], dying)
    await DEADLY[argument["call"]](store, argument)


async def _approve(store: RedisStateStore, argument: dict[str, Any]) -> None:
    await store.contexts.apply_pending_patch("s", argument["patch_id"], idempotency_key="mine")


async def _apply(store: RedisStateStore, argument: dict[str, Any]) -> None:
    patch = ContextPatch(task_id="t")
    await store.contexts.apply_context_patch("s", patch, payload=1, patch_id=argument["patch_id"])


async def _finish(store: RedisStateStore, argument: dict[str, Any]) -> None:
    await store.groups.finish("s", argument["group_id"], "t", success=True, idempotency_key="mine")


async def _set(store: RedisStateStore, argument: dict[str, Any]) -> None:
    await store.kv.bind(OWNER).set("large", ["new"] * 2000)


DEADLY = {"approve": _approve, "apply": _apply, "finish": _finish, "set": _set}


async def main(argument: dict[str, Any]) -> Any:
    """Do what the argument says."""
    does = {f.__name__: f for f in (apply, decide, finish, join, count, crash)}
    url, namespace = argument["url"], argument["namespace"]
    async with RedisStateStore.from_url(url, namespace=namespace, call_timeout_s=30) as store:
        return await does[argument["does"]](store, argument)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
