"""Pauses and their decisions, in short."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts import (
    Reply,
    ReplyCode,
    Scripts,
    TaskKeys,
)
from redis_state.serialization import codec
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying
from tests.support.scripts.replies import HOUR
from tests.support.scripts.tasks import mark_of


async def open_pause(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *,
    mark: bytes | None = None,
    entry: str = "pause:x#1",
    ttl_ms: int = HOUR,
    before: int | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Reply:
    """Open a pause under a token."""
    return await scripts.open_pause(
        task,
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        token=token,
        entry=entry,
        note=b"open",
        owner=b"owner",
        about=b"about",
        extra={name.encode(): value for name, value in (extra or {}).items()},
        token_ttl_ms=ttl_ms,
        keep_ms=HOUR,
        ttl_ms=HOUR,
        announcement=saying(keys, f"opened-{token}"),
        before=before,
    )


async def pause(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *,
    mark: bytes | None = None,
    entry: str = "pause:x#1",
) -> Reply:
    """Have a task wait for a pause."""
    return await scripts.pause_task(
        task,
        {"status": b"PAUSED"},
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        token=token,
        entry=entry,
        write=f"pause {token}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"paused-{token}"),
    )


async def decide(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    claim: str = "c",
    *,
    answer: str = "yes",
    entry: str = "pause:x#1",
    overdue: bool = False,
    mark: bytes = b"",
    voter: str | None = None,
    approves: bool = True,
) -> Reply:
    """Decide a pause, or vote on it. What is looked at of the task is left out of the reply."""
    reply = await scripts.decide_pause(
        task,
        {"status": b"PENDING"},
        token=token,
        entry=entry,
        claim=claim,
        actor=f"by {claim}" if voter is None else voter,
        decision=answer.encode(),
        approves=approves,
        vote=b"" if voter is None else codec.encode([voter, answer]),
        note=f"{answer} by {claim}".encode() if voter is None else b'{"by":1}',
        keep_ms=HOUR,
        ttl_ms=HOUR,
        announcement=saying(keys, *(f"{what}-{claim}" for what in ("resumed", "decided", "voted"))),
        overdue=overdue,
        mark=mark,
    )
    return Reply(reply.word, reply.facts[:2]) if reply.word is ReplyCode.OK else reply


def seats(*actors: str, approvals: int = 1, rejections: int = 0) -> dict[str, bytes]:
    """Name who decides a pause, for `open_pause`."""
    counts = {"approvals": b"%d" % approvals, "rejections": b"%d" % rejections}
    return counts | {f"seat:{actor}": b"open" for actor in actors}


async def delegate(
    scripts: Scripts, keys: Keys, pair: tuple[TaskKeys, str], actor: str, to: str, *, most: int = 99
) -> Reply:
    """Hand a seat of a pause on."""
    task, token = pair
    return await scripts.delegate_pause(
        task,
        token=token,
        actor=actor,
        to=to,
        most=most,
        announcement=saying(keys, f"delegated-{actor}-{to}"),
    )


async def escalate(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    token: str,
    *actors: str,
    number: int = 0,
    after_ms: int = 0,
    replaces: bool = False,
) -> Reply:
    """Let a pause gain deciders."""
    return await scripts.escalate_pause(
        task,
        token=token,
        number=number,
        after_ms=after_ms,
        replaces=replaces,
        announcement=saying(keys, f"escalated-{number}"),
        actors=actors,
    )
