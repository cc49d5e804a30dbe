"""What the tests of the scripts of A2A tasks share. Nothing here needs the SDK."""

from __future__ import annotations

from typing import Any

from redis_state.scripts import A2AVersionKeys, Reply, Scripts
from redis_state.transport.keys import Keys, a2a_scope
from tests.support.scripts import HOUR, ask

SCOPE = a2a_scope("tenant", "owner")
TIMELESS = "0" * 31


def version_keys(keys: Keys, task_id: str = "t", scope: str = SCOPE) -> A2AVersionKeys:
    """Name a task's keys."""
    return A2AVersionKeys(
        task_id,
        keys.a2a_version(scope, task_id),
        keys.a2a_version_books(scope),
        keys.a2a_version_events(scope, task_id),
        keys.a2a_version_lease(scope, task_id),
        keys.a2a_version_configs(scope, task_id),
    )


async def write(scripts: Scripts, task: A2AVersionKeys, **changes: Any) -> Reply:
    """Write a version; by default the first one of a task in work."""
    version: dict[str, Any] = {
        "rule": "0",
        "write": "w",
        "row": b"oevent",
        "state": "2",
        "phase": "o",
        "place": f"c 2 {TIMELESS}".encode(),
        "body": b"body",
        "ttl_ms": HOUR,
        "max_rows": 100,
        "owner": "me",
        "lease_ms": HOUR,
        "keep_ms": HOUR,
        "epoch": None,
    }
    return await scripts.write_a2a_version(task, **{**version, **changes})


async def page(
    scripts: Scripts,
    keys: Keys,
    *,
    asked: bytes = b"*|*|",
    since: bytes = b"0",
    after: bytes = b"",
    size: int = 10,
) -> list[Any]:
    """Read a page as a store does: total, more, tasks."""
    known: list[bytes] = []
    while True:
        reply = await scripts.list_a2a_versions(
            keys.a2a_version_books(SCOPE),
            [keys.a2a_version(SCOPE, name.decode()) for name in known],
            asked=asked,
            since=since,
            after=after,
            size=size,
            settle=False,
            known=known,
        )
        if reply.word == "OK":
            return reply.facts
        known = reply.facts


async def indexed(scripts: Scripts, keys: Keys) -> list[int]:
    """Count what an owner's books hold: places in the list, tasks by place, tasks by expiry."""
    books = keys.a2a_version_books(SCOPE)
    return [
        await ask(scripts, "ZCARD", books.index),
        await ask(scripts, "HLEN", books.places),
        await ask(scripts, "ZCARD", books.expiry),
    ]
