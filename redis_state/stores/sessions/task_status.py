"""What a task's record says to those who run it, beside the `TaskState` that hosts see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import read_entry
from redis_state.serialization import codec

# Tasks under a key of this kind run one at a time, whatever is set. Lua has it too.
IN_TURN = "1:"


def watch_entry(session_id: str, task_id: str) -> bytes:
    """Return a task's entry for the watch list."""
    return codec.encode(["task", session_id, task_id])


def task_of_entry(entry: bytes) -> tuple[str, str] | None:
    """Return the task of an entry; None if it is none."""
    match read_entry(entry):
        case ["task", str(session_id), str(task_id)]:
            return session_id, task_id
        case _:
            return None


def updated_us(fields: Mapping[str, bytes]) -> int | None:
    """Return when a task's record says that it changed last, in us. Errors: ValueError."""
    counted = fields.get("updated_at")
    return int(counted) if counted else None


# Not frozen, which would make it three times as long: there is one for each start and inspection.
@dataclass(slots=True)
class TaskStatusView:
    """A task at one moment. ``left_ms`` is the rest of its owner's lease, 0 without one.

    ``ours`` distinguishes a worker's task from one that a host saved. One that is ``isolated`` is
    not cancelled with its ``parent``. ``waits_for`` is the child whose end it waits for, ``pause``
    the digest of the pause's token; ``waits_for_message`` is true while it waits for messages.
    ``order`` distinguishes a task from later ones of its id, ``parent_order`` its parent from later
    ones of that id. ``write`` is that of the version. ``retries`` counts how often it was reopened,
    ``parent_retry`` is the last retry of its parent that reopened it too. It is due at ``due_ms``,
    and is limited under ``key``. It moved last at ``updated_us``.
    """

    session_id: str
    task_id: str
    status: TaskStatus
    version: int
    order: int
    priority: int
    attempts: int
    crashes: int
    queue: str | None
    ours: bool
    parent: str | None
    parent_order: int
    isolated: bool
    waits_for: str | None
    due_ms: int = 0
    key: str = ""
    write: str = ""
    retries: int = 0
    parent_retry: int = 0
    epoch: int = 0
    left_ms: int = 0
    waits_for_message: bool = False
    pause: str | None = None
    updated_us: int | None = None

    @classmethod
    def of(
        cls,
        session_id: str,
        task_id: str,
        fields: Mapping[str, bytes],
        *,
        epoch: int = 0,
        left_ms: int = 0,
    ) -> Self:
        """Read the fields of a record. Errors: ValueError, KeyError."""
        get = fields.get
        status = TaskStatus(fields["status"].decode())
        is_paused = status is TaskStatus.PAUSED
        # Of several ways to wait only the last one stands.
        waits_for = _text(get("waits_for")) if is_paused else None
        pause = _text(get("pause_token")) if is_paused else None
        for_message = is_paused and bool(get("waits_box")) and not (waits_for or pause)
        return cls(
            session_id,
            task_id,
            status=status,
            version=int(get("version") or 0),
            order=int(get("order") or 0),
            priority=int(get("priority") or 0),
            attempts=int(get("attempts") or 0),
            crashes=int(get("crashes") or 0),
            queue=_text(get("queue")),
            ours="job" in fields,
            parent=_text(get("parent")),
            parent_order=int(get("parent_order") or 0),
            isolated=get("isolate") == b"1",
            waits_for=waits_for,
            due_ms=int(get("due") or 0),
            key=_text(get("flow_key")) or "",
            write=_text(get("write")) or "",
            retries=int(get("retries") or 0),
            parent_retry=int(get("parent_retry") or 0),
            epoch=epoch,
            left_ms=left_ms,
            waits_for_message=for_message,
            pause=pause,
            updated_us=updated_us(fields),
        )

    @property
    def is_orphan(self) -> bool:
        """Whether it runs under a lease that has run out."""
        return self.status is TaskStatus.RUNNING and not self.left_ms

    @property
    def in_turn(self) -> bool:
        """Whether it runs in turn with the other tasks of its session."""
        return self.key.startswith(IN_TURN)

    @property
    def cancelled_with(self) -> str | None:
        """Return the task with which it is cancelled."""
        return None if self.isolated else self.parent


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "surrogatepass") if value else None
