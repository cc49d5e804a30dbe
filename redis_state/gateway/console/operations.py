"""The operations that pages call, by name."""

from __future__ import annotations

from typing import Final

from redis_state.gateway.calls import Operation
from redis_state.gateway.routes.pool import queues, rates, schedules, workers
from redis_state.gateway.routes.sessions import events, sessions
from redis_state.gateway.routes.tasks import bulk, changes, pauses, tasks


def _by_name() -> dict[str, Operation]:
    listed = (
        *(*bulk.OPERATIONS, *changes.OPERATIONS, *events.OPERATIONS, *pauses.OPERATIONS),
        *(*queues.OPERATIONS, *schedules.OPERATIONS, *sessions.OPERATIONS, *tasks.OPERATIONS),
        *(*rates.OPERATIONS, *workers.OPERATIONS),
    )
    return {each.name: each for each in listed}


_NAMED = _by_name()
CHANGE_ALL: Final = _NAMED["change_all"]
CANCEL_TASK: Final = _NAMED["cancel_task"]
FORK_TASK: Final = _NAMED["fork_task"]
RERUN_TASK: Final = _NAMED["rerun_task"]
RETRY_TASK: Final = _NAMED["retry_task"]
STEER_TASK: Final = _NAMED["steer_task"]
STREAM_EVENTS: Final = _NAMED["stream_events"]
DECIDE_PAUSE: Final = _NAMED["decide_pause"]
DELEGATE_PAUSE: Final = _NAMED["delegate_pause"]
LIST_PAUSES: Final = _NAMED["list_pauses"]
READ_PAUSE: Final = _NAMED["read_pause"]
LIST_QUEUES: Final = _NAMED["list_queues"]
PAUSE_QUEUE: Final = _NAMED["pause_queue"]
RESUME_QUEUE: Final = _NAMED["resume_queue"]
LIST_RATES: Final = _NAMED["list_rates"]
LIST_SCHEDULES: Final = _NAMED["list_schedules"]
PAUSE_SCHEDULE: Final = _NAMED["pause_schedule"]
RESUME_SCHEDULE: Final = _NAMED["resume_schedule"]
TRIGGER_SCHEDULE: Final = _NAMED["trigger_schedule"]
LIST_SESSIONS: Final = _NAMED["list_sessions"]
READ_SESSION: Final = _NAMED["read_session"]
READ_TREES: Final = _NAMED["read_trees"]
FIND_TASKS: Final = _NAMED["find_tasks"]
LIST_DEAD: Final = _NAMED["list_dead"]
READ_TASK: Final = _NAMED["read_task"]
READ_TREE: Final = _NAMED["read_tree"]
READ_TIMELINE: Final = _NAMED["read_timeline"]
READ_ROWS: Final = tasks.READ_ROWS
LIST_WORKERS: Final = _NAMED["list_workers"]
