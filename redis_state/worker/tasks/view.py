"""The state of a task, for the decisions about it."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state.errors import CorruptState
from redis_state.models import TaskStatus
from redis_state.scripts import ReplyCode
from redis_state.store import RedisStateStore
from redis_state.worker.arq.job_format import Job


@dataclass(frozen=True, slots=True)
class TaskStatusView:
    """A task at one moment. ``left_ms`` is the rest of its owner's lease, 0 without one.

    ``ours`` distinguishes a worker's task from one that a host saved. ``parent`` is the task with
    which it is cancelled, ``waits_for`` the child whose end it waits for. ``order`` distinguishes a
    task from later ones of its id, ``parent_order`` its parent from later ones of that id.
    """

    status: TaskStatus
    epoch: int
    left_ms: int
    crashes: int
    ours: bool
    job: Job
    order: int = 0
    parent: str | None = None
    parent_order: int = 0
    waits_for: str | None = None

    @property
    def is_orphan(self) -> bool:
        """Whether it runs under a lease that has run out."""
        return self.status is TaskStatus.RUNNING and not self.left_ms


async def read_status(
    store: RedisStateStore, session_id: str, task_id: str
) -> TaskStatusView | None:
    """Read a task and its lease in one step; None if there is none.

    Errors: CorruptState for a record that no task can have.
    """
    keys = store.tasks.keys(session_id, task_id)
    reply = await store.base.scripts.look_task(keys)
    if reply.word is ReplyCode.MISSING:
        return None
    try:
        status = TaskStatus(reply.text(0))
        version, epoch, left_ms = map(int, reply.facts[1:4])
        order_us, priority, crashes, ours = (int(reply.facts[place]) for place in (4, 5, 6, 8))
        parent_order_us, attempts = int(reply.facts[11] or 0), int(reply.facts[12])
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptState(keys.task, "not a task's record") from error
    job = Job(
        session_id,
        task_id,
        attempts,
        priority,
        queue=reply.text(7) or None,
        version=version,
        orphan=status is TaskStatus.RUNNING,
        since_ms=order_us // 1000,
    )
    paused = status is TaskStatus.PAUSED
    return TaskStatusView(
        status,
        epoch,
        left_ms,
        crashes,
        bool(ours),
        job,
        order=order_us,
        parent=reply.text(9) or None,
        parent_order=parent_order_us,
        waits_for=(reply.text(10) or None) if paused else None,
    )
