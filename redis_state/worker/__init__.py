"""Run agents' tasks in a pool of arq workers, over the state store. Needs the extra ``worker``."""

from __future__ import annotations

from redis_state.worker.cleanup import cleanup_cron
from redis_state.worker.client import TaskClient
from redis_state.worker.context import TaskContext, TaskHandedBack
from redis_state.worker.family import ChildTask
from redis_state.worker.guards import Budget, Guard, Spent, TaskStopped, guarded
from redis_state.worker.inbox import TaskCancelled
from redis_state.worker.open_pauses import OpenPause
from redis_state.worker.retries import RetryPolicy, retried
from redis_state.worker.run import Handler
from redis_state.worker.runner import AgentWorker
from redis_state.worker.snapshots import FullSnapshot, Snapshot
from redis_state.worker.steps import StepPolicy
from redis_state.worker.waitpoint import Decision, Pause
from redis_state.worker.watching import TaskView
from redis_state.worker.workers import WorkerInfo, WorkerRegistry

__all__ = [
    "AgentWorker",
    "Budget",
    "ChildTask",
    "Decision",
    "FullSnapshot",
    "Guard",
    "Handler",
    "OpenPause",
    "Pause",
    "RetryPolicy",
    "Snapshot",
    "Spent",
    "StepPolicy",
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
    "retried",
]
