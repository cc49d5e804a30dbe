"""Tasks, their runs, children and jobs, in short."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from redis_state.scripts import (
    TASK_FIELDS,
    QueuedJob,
    Reply,
    ReplyCode,
    Scripts,
    TaskKeys,
)
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.replies import HOUR, ask

# As arq writes a job.
_PAYLOAD = (
    b'{"t":null,"f":"run_task","a":[{"session_id":"s","task_id":"%b","runs":%d}],"k":{},"et":1}'
)


def task_values(status: str) -> list[bytes]:
    """Make what a host's save of a task in this state writes."""
    given = {"status": status, "priority": "0", "document": "{}", "updated": "then"}
    return [given.get(name, "null").encode() for name in TASK_FIELDS]


async def make_task(
    scripts: Scripts, task: TaskKeys, status: str, *, finished: bool = False
) -> None:
    """Save a task in a state."""
    saved = await scripts.save_task(
        task,
        task_values(status),
        write=uuid4().hex,
        ttl_ms=HOUR,
        finished=finished,
        updated_at_us=1,
    )
    assert saved.word is ReplyCode.OK


STRANGER = b"7  stranger"


async def mark_of(scripts: Scripts, lease: str) -> bytes:
    """Make what a write of the lease's holder carries."""
    epoch, claim = await ask(scripts, "HMGET", lease, "epoch", "claim")
    return STRANGER if epoch is None else bytes(epoch) + b"  " + bytes(claim)


async def epoch_of(scripts: Scripts, lease: str) -> int:
    """Tell a lease's epoch, 0 if there is none."""
    return int(await ask(scripts, "HGET", lease, "epoch") or 0)


def queued_job(
    keys: Keys, task: str = "t", *, runs: int = 0, since_ms: int | None = None, **changes: Any
) -> QueuedJob:
    """Make a job of a task, as the queue's scripts take it."""
    job = QueuedJob(
        channel=keys.queue("q").channel,
        id=f"{keys.jobs_tag}/s/{task}:{runs}",
        payload=_PAYLOAD % (task.encode(), runs),
        life_ms=HOUR,
        earlier_ms=0,
        since_ms=since_ms,
        at_ms=None,
        key="",
    )
    return job._replace(**changes)


async def ensure_job(
    scripts: Scripts,
    keys: Keys,
    task: str = "t",
    *,
    key: str = "",
    runs: int = 0,
    orphan: bool = False,
    version: str = "1",
    patience_ms: int = HOUR,
    retired: int = 0,
    earlier_ms: int = 0,
) -> str:
    """Ensure that the job of a task's run is queued; return what the queue had of it."""
    job = queued_job(keys, task, runs=runs, key=key, earlier_ms=earlier_ms)
    before = max(0, runs - 1)
    reply = await scripts.ensure_job(
        keys.queue("q"),
        payload=job_payload(keys, task, runs=runs),
        picked=f"arq:in-progress:{job.id}",
        earlier_payload=job_payload(keys, task, runs=before),
        job=job,
        earlier=queued_job(keys, task, runs=before).id,
        orphan=orphan,
        version=version,
        patience_ms=patience_ms,
        retired=retired,
    )
    return reply.text(0)


async def move_job(
    scripts: Scripts,
    keys: Keys,
    task: str = "t",
    *,
    earlier_ms: int,
    runs: int = 0,
    since_ms: int | None = None,
) -> Reply:
    """Move a job to the place of a priority that is worth so much."""
    name, before = (queued_job(keys, task, runs=run).id for run in (runs, max(0, runs - 1)))
    return await scripts.move_job(
        keys.queue("q"),
        payload=f"arq:job:{name}",
        earlier_payload=f"arq:job:{before}",
        id=name,
        earlier=before,
        earlier_ms=earlier_ms,
        since_ms=since_ms,
    )


def job_payload(keys: Keys, task: str = "t", *, runs: int = 0) -> str:
    """Name the key of a job's payload."""
    return f"arq:job:{queued_job(keys, task, runs=runs).id}"


async def start(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    *,
    owner: str = "one",
    lease_ms: int = HOUR,
    claimed: int | None = None,
    reads: int = 1,
) -> Reply:
    """Start a task."""
    return await scripts.start_task(
        task,
        {"status": b"RUNNING"},
        owner=owner,
        lease_ms=lease_ms,
        write=f"start {owner}",
        ttl_ms=HOUR,
        announcement=saying(keys, f"started-{owner}"),
        steering=keys.steering("s"),
        claimed=claimed,
        reads=reads,
    )


async def spawn(
    scripts: Scripts,
    keys: Keys,
    parent: TaskKeys,
    *,
    child: str = "c",
    mark: bytes | None = None,
    write: str = "spawned",
    before: int = 1 << 52,
    ttl_ms: int = HOUR,
) -> Reply:
    """Spawn a child of a task."""
    return await scripts.spawn_task(
        task_keys(keys, task=child),
        {"status": b"PENDING", "finished": b"0", "parent": parent.task_id.encode()},
        parent=parent,
        children=keys.children("s", parent.task_id),
        mark=await mark_of(scripts, parent.lease) if mark is None else mark,
        entry=f"child:{child}#1",
        note=b"{}",
        before=before,
        write=write,
        ttl_ms=ttl_ms,
        index_ttl_ms=2 * ttl_ms,
        announcement=saying(keys, f"pending-{child}", f"spawned-{child}"),
    )


async def join(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    child: TaskKeys,
    *,
    mark: bytes | None = None,
    write: str = "joined",
) -> Reply:
    """Have a task wait for a child's end."""
    return await scripts.join_task(
        task,
        {"status": b"PAUSED"},
        child=child,
        mark=await mark_of(scripts, task.lease) if mark is None else mark,
        write=write,
        ttl_ms=HOUR,
        announcement=saying(keys, f"joined-{child.task_id}"),
    )


async def wake(
    scripts: Scripts,
    keys: Keys,
    task: TaskKeys,
    child: TaskKeys,
    *,
    write: str = "woken",
    ttl_ms: int = HOUR,
) -> Reply:
    """Tell a task that a child may be over."""
    return await scripts.wake_task(
        task,
        {"status": b"PENDING"},
        child=child,
        write=write,
        ttl_ms=ttl_ms,
        announcement=saying(keys, f"woken-{child.task_id}"),
    )
