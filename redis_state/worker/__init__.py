"""Run agents' tasks in a pool of arq workers, over the state store. Needs the extra ``worker``."""

from __future__ import annotations

from redis_state.worker.client import TaskClient
from redis_state.worker.context import Decision, TaskContext
from redis_state.worker.inbox import TaskCancelled
from redis_state.worker.run import Handler
from redis_state.worker.runner import AgentWorker
from redis_state.worker.workers import WorkerInfo, WorkerRegistry

__all__ = [
    "AgentWorker",
    "Decision",
    "Handler",
    "TaskCancelled",
    "TaskClient",
    "TaskContext",
    "WorkerInfo",
    "WorkerRegistry",
]
