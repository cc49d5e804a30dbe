"""Run tasks of agents in a pool of workers, over the state store. Needs the extra ``worker``."""

from __future__ import annotations

from redis_state.worker.arq.cron import cleanup_cron
from redis_state.worker.client import TaskClient
from redis_state.worker.context import TaskContext, TaskHandedBack
from redis_state.worker.guards import Budget, Guard, Spent, TaskStopped, guarded
from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
from redis_state.worker.run import Handler
from redis_state.worker.schedules.client import Occurrence, Schedules, ScheduleView
from redis_state.worker.schedules.model import Schedule, occurrence_of
from redis_state.worker.tasks.children import ChildTask
from redis_state.worker.tasks.inbox import TaskCancelled
from redis_state.worker.tasks.open_pauses import OpenPause
from redis_state.worker.tasks.pause_model import Decision, Pause
from redis_state.worker.tasks.retries import RetryPolicy, retried
from redis_state.worker.tasks.snapshots import FullSnapshot, StepSnapshot
from redis_state.worker.tasks.steps import StepPolicy
from redis_state.worker.tasks.stream import TaskView
from redis_state.worker.worker import AgentWorker

__all__ = [
    "AgentWorker",
    "Budget",
    "ChildTask",
    "Decision",
    "FullSnapshot",
    "Guard",
    "Handler",
    "Occurrence",
    "OpenPause",
    "Pause",
    "RetryPolicy",
    "Schedule",
    "ScheduleView",
    "Schedules",
    "Spent",
    "StepPolicy",
    "StepSnapshot",
    "TaskCancelled",
    "TaskClient",
    "TaskContext",
    "TaskHandedBack",
    "TaskStopped",
    "TaskView",
    "WorkerInfo",
    "WorkerRegistry",
    "cleanup_cron",
    "guarded",
    "occurrence_of",
    "retried",
]
