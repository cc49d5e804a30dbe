"""Groups of tasks and patches of a context, in short."""

from __future__ import annotations

import uuid
from typing import Any

from redis_state.scripts import (
    GroupKeys,
    PatchKeys,
    Reply,
    Scripts,
)
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying
from tests.support.scripts.replies import HOUR


async def apply(
    scripts: Scripts, keys: Keys, patch: PatchKeys, *, gated: bool = False, **more: Any
) -> Reply:
    """Bring a patch into its context, or keep it for a decision."""
    given: dict[str, Any] = {
        "basis": (0, ""),
        "payload": b"kept" if gated else b"",
        "result": b"" if gated else b"result",
        "decision": b"pending" if gated else b"applied",
        "actor": "me",
        "wait_ms": HOUR,
        "keep_ms": HOUR,
        "limit": 2,
        "ttl_ms": HOUR,
        "call": uuid.uuid4().hex,
        "announcement": saying(keys, "told"),
    }
    return await scripts.apply_patch(patch, **{**given, **more})


async def make_group(
    scripts: Scripts,
    group: GroupKeys,
    *,
    alias: bytes = b"name",
    instead_of: str | None = None,
    write: str = "w",
) -> Reply:
    """Open a group of a name."""
    return await scripts.create_group(
        group,
        {"status": b"open", "report": b"all", "document": b"{}"},
        alias=alias,
        instead_of=instead_of,
        write=write,
        ttl_ms=HOUR,
    )


async def finish(
    scripts: Scripts, group: GroupKeys, task: str, *, call: str = "c", **more: Any
) -> Reply:
    """End a member of a group."""
    given: dict[str, Any] = {"outcome": "complete", "patch_id": None}
    return await scripts.finish_member(
        group,
        task_id=task,
        call=call,
        ttl_ms=HOUR,
        ended_ttl_ms=HOUR // 2,
        **{**given, **more},
    )


async def close(
    scripts: Scripts,
    group: GroupKeys,
    *,
    target: str = "sealed",
    call: str = "c",
    alias: bytes = b"name",
) -> Reply:
    """Seal a group, or end it as failed."""
    return await scripts.close_group(
        group, target=target, alias=alias, call=call, ttl_ms=HOUR, ended_ttl_ms=HOUR // 2
    )
