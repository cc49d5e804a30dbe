"""Run tasks of agents in a pool of workers, over the state store. Needs the extra ``worker``."""

from __future__ import annotations

from redis_state.worker.arq.cron import cleanup_cron
from redis_state.worker.client import TaskClient
from redis_state.worker.context import TaskContext, TaskHandedBack
from redis_state.worker.guards import Budget, Guard, Spent, TaskStopped, guarded
from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
from redis_state.worker.run import Handler
from redis_state.worker.tasks.bulk import BulkAction, BulkItem, BulkOutcome, BulkReport
from redis_state.worker.tasks.children import ChildTask
from redis_state.worker.tasks.finding import FoundPage, TaskFilters, TaskSummary
from redis_state.worker.tasks.inbox import TaskCancelled
from redis_state.worker.tasks.links import TaskLink
from redis_state.worker.tasks.open_pauses import OpenPause
from redis_state.worker.tasks.pause_model import Decision, Pause
from redis_state.worker.tasks.retries import RetryPolicy, retried
from redis_state.worker.tasks.running import RunningStep
from redis_state.worker.tasks.session_list import SessionTaskPage, SessionTasks
from redis_state.worker.tasks.snapshots import FullSnapshot, StepSnapshot
from redis_state.worker.tasks.steps import StepPolicy
from redis_state.worker.tasks.stream import TaskView
from redis_state.worker.worker import AgentWorker

__all__ = [
    "AgentWorker",
    "Budget",
    "BulkAction",
    "BulkItem",
    "BulkOutcome",
    "BulkReport",
    "ChildTask",
    "Decision",
    "FoundPage",
    "FullSnapshot",
    "Guard",
    "Handler",
    "OpenPause",
    "Pause",
    "RetryPolicy",
    "RunningStep",
    "SessionTaskPage",
    "SessionTasks",
    "Spent",
    "StepPolicy",
    "StepSnapshot",
    "TaskCancelled",
    "TaskClient",
    "TaskContext",
    "TaskFilters",
    "TaskHandedBack",
    "TaskLink",
    "TaskStopped",
    "TaskSummary",
    "TaskView",
    "WorkerInfo",
    "WorkerRegistry",
    "cleanup_cron",
    "guarded",
    "retried",
]
