"""What the tests of the scripts of A2A tasks share. Nothing here needs the SDK."""

from __future__ import annotations

from typing import Any

from redis_state.scripts import Reply, Scripts
from redis_state.transport.key_groups import A2AKeys
from redis_state.transport.keys import Keys, a2a_scope
from redis_state.transport.keys import a2a_keys as keys_of
from tests.support.scripts.replies import HOUR, ask

SCOPE = a2a_scope("tenant", "owner")
TIMELESS = "0" * 31


def a2a_keys(keys: Keys, task_id: str = "t", scope: str = SCOPE) -> A2AKeys:
    """Return a task's keys."""
    return keys_of(keys, scope, task_id)


def all_keys(task: A2AKeys) -> tuple[str, ...]:
    """List a task's keys and those of its lists, and its channel."""
    books, events = task.books, task.events
    lists = (books.index, books.places, books.expiry)
    log = (events.rows, events.ids, events.channel)
    return (task.task, *lists, *log, task.lease, task.configs, task.history, task.artifacts)


async def write(scripts: Scripts, task: A2AKeys, **changes: Any) -> Reply:
    """Write a task; by default the first version of one that is worked on."""
    call: dict[str, Any] = {
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
        **changes,
    }
    body, fields = call.pop("body"), call.pop("fields", {})
    call["write"] = call["write"].encode()
    return await scripts.write_a2a_task(task, {"body": body, **fields} if body else fields, **call)


async def create(scripts: Scripts, task: A2AKeys, write_id: str = "c", **changes: Any) -> Reply:
    """Write a task without a version, as hosts do that register it; nobody owns it."""
    call = {"write": write_id, "row": b"", "place": b"c new -", "owner": "", **changes}
    return await write(scripts, task, **call)


async def drop(
    scripts: Scripts,
    task: A2AKeys,
    *,
    before_us: int | None = None,
    tombstone_ms: int = HOUR,
) -> Reply:
    """Delete a task."""
    return await scripts.drop_a2a_task(
        task, write="d", before_us=before_us, tombstone_ms=tombstone_ms
    )


async def page(
    scripts: Scripts,
    keys: Keys,
    *,
    prefix: bytes = b"*|*|",
    since: bytes = b"0",
    after: bytes = b"",
    size: int = 10,
    most_bytes: int = 1 << 20,
    whole: bool = True,
) -> list[Any]:
    """Read a page as a store does: total, others, more, tasks."""
    known: list[bytes] = []
    while True:
        reply = await scripts.list_a2a_tasks(
            keys.a2a_books(SCOPE),
            [keys.a2a_task(SCOPE, name.decode()) for name in known],
            prefix=prefix,
            since=since,
            after=after,
            size=size,
            most_bytes=most_bytes,
            whole=whole,
            known=known,
        )
        if reply.word == "OK":
            return reply.facts
        known = reply.facts


async def indexed(scripts: Scripts, keys: Keys) -> list[int]:
    """Count what a scope's lists hold: places in the list, tasks by place, tasks by expiry."""
    books = keys.a2a_books(SCOPE)
    return [
        await ask(scripts, "ZCARD", books.index),
        await ask(scripts, "HLEN", books.places),
        await ask(scripts, "ZCARD", books.expiry),
    ]
