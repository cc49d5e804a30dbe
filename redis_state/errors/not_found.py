"""There is none, or there is none any more."""

from __future__ import annotations

from redis_state.errors.base import LostRace


class NotFound(LostRace):
    """The thing does not exist, or no longer."""


class SessionNotFound(NotFound):
    """The session does not exist. It was never created, was deleted, or has expired."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")
        self.session_id = session_id


class TokenUnknown(NotFound):
    """The token does not exist or has expired. ``expired`` is known for some time only."""

    def __init__(self, *, expired: bool) -> None:
        super().__init__("the token has expired" if expired else "no such token")
        self.expired = expired


class TaskUnknown(NotFound):
    """The task does not exist. It was never created, has expired, or was cleaned up."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}")
        self.task_id = task_id


class ScheduleUnknown(NotFound):
    """The schedule does not exist. It was never saved, was deleted, or has ended and expired."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"there is no schedule {schedule_id!r}")
        self.schedule_id = schedule_id


class StreamUnknown(NotFound):
    """The durable stream does not exist. It was never created, has expired, or was deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no stream {path!r}")
        self.path = path


class StreamDeleted(StreamUnknown):
    """The durable stream was deleted. Its path stays taken as long as forks of it are kept."""
