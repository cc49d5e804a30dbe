"""Run tasks of agents in a pool of workers, over the state store. Needs the extra ``worker``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.lazy import lazily

if TYPE_CHECKING:
    from redis_state.worker.arq.cron import cleanup_cron
    from redis_state.worker.client.client import TaskClient
    from redis_state.worker.client.unserved import HandlerVersion, UnservedTasks
    from redis_state.worker.handler.context import TaskContext
    from redis_state.worker.handler.guards import Budget, Guard, Spent, TaskStopped, guarded
    from redis_state.worker.handler.messaging import Request
    from redis_state.worker.handler.versions import versioned
    from redis_state.worker.observe.registry import WorkerInfo, WorkerRegistry
    from redis_state.worker.pool.worker import AgentWorker
    from redis_state.worker.queue.backlog import QueueKeyInfo
    from redis_state.worker.queue.control import Queues
    from redis_state.worker.queue.limits import KeyLimits, QueueInfo, Rate
    from redis_state.worker.queue.rates import Rates, RateUse
    from redis_state.worker.runs.config import Handler
    from redis_state.worker.schedules.client import Schedules
    from redis_state.worker.schedules.model import Schedule, occurrence_of
    from redis_state.worker.schedules.views import Occurrence, ScheduleView
    from redis_state.worker.tasks.children.requests import ChildTask
    from redis_state.worker.tasks.execution.exits import TaskHandedBack
    from redis_state.worker.tasks.execution.inbox import TaskCancelled
    from redis_state.worker.tasks.execution.policy import StepPolicy
    from redis_state.worker.tasks.execution.retries import RetryPolicy, retried
    from redis_state.worker.tasks.execution.running import RunningStep
    from redis_state.worker.tasks.messaging.mailbox import TaskMessage
    from redis_state.worker.tasks.messaging.text import TextWriter
    from redis_state.worker.tasks.messaging.text_reader import ShownText, TextReader
    from redis_state.worker.tasks.messaging.values import PublishedValue
    from redis_state.worker.tasks.operate.bulk import BulkAction, BulkItem, BulkOutcome, BulkReport
    from redis_state.worker.tasks.recorded.compensations import Compensation
    from redis_state.worker.tasks.recorded.snapshots import FullSnapshot, StepSnapshot
    from redis_state.worker.tasks.submitting.turns import OnBusy
    from redis_state.worker.tasks.views.dead_list import DeadPage
    from redis_state.worker.tasks.views.finding import FoundPage
    from redis_state.worker.tasks.views.finding_archived import Archived
    from redis_state.worker.tasks.views.links import TaskLink
    from redis_state.worker.tasks.views.session_list import SessionTaskPage, SessionTasks
    from redis_state.worker.tasks.views.stream import TaskView
    from redis_state.worker.tasks.views.summary import TaskSummary
    from redis_state.worker.tasks.views.task_filter import TaskFilters
    from redis_state.worker.tasks.waitpoints.ballots import Decider, Escalate, Escalation, Vote
    from redis_state.worker.tasks.waitpoints.open_pauses import OpenPause
    from redis_state.worker.tasks.waitpoints.pause_model import Decision, Pause
    from redis_state.worker.tasks.waitpoints.pause_pages import PausePage
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "redis_state.worker.arq.cron": "cleanup_cron",
            "redis_state.worker.client.client": "TaskClient",
            "redis_state.worker.client.unserved": "HandlerVersion UnservedTasks",
            "redis_state.worker.handler.context": "TaskContext",
            "redis_state.worker.handler.guards": "Budget Guard Spent TaskStopped guarded",
            "redis_state.worker.handler.messaging": "Request",
            "redis_state.worker.handler.versions": "versioned",
            "redis_state.worker.observe.registry": "WorkerInfo WorkerRegistry",
            "redis_state.worker.pool.worker": "AgentWorker",
            "redis_state.worker.queue.backlog": "QueueKeyInfo",
            "redis_state.worker.queue.control": "Queues",
            "redis_state.worker.queue.limits": "KeyLimits QueueInfo Rate",
            "redis_state.worker.queue.rates": "Rates RateUse",
            "redis_state.worker.runs.config": "Handler",
            "redis_state.worker.schedules.client": "Schedules",
            "redis_state.worker.schedules.model": "Schedule occurrence_of",
            "redis_state.worker.schedules.views": "Occurrence ScheduleView",
            "redis_state.worker.tasks.children.requests": "ChildTask",
            "redis_state.worker.tasks.execution.exits": "TaskHandedBack",
            "redis_state.worker.tasks.execution.inbox": "TaskCancelled",
            "redis_state.worker.tasks.execution.policy": "StepPolicy",
            "redis_state.worker.tasks.execution.retries": "RetryPolicy retried",
            "redis_state.worker.tasks.execution.running": "RunningStep",
            "redis_state.worker.tasks.messaging.mailbox": "TaskMessage",
            "redis_state.worker.tasks.messaging.text": "TextWriter",
            "redis_state.worker.tasks.messaging.text_reader": "ShownText TextReader",
            "redis_state.worker.tasks.messaging.values": "PublishedValue",
            "redis_state.worker.tasks.operate.bulk": "BulkAction BulkItem BulkOutcome BulkReport",
            "redis_state.worker.tasks.recorded.compensations": "Compensation",
            "redis_state.worker.tasks.recorded.snapshots": "FullSnapshot StepSnapshot",
            "redis_state.worker.tasks.submitting.turns": "OnBusy",
            "redis_state.worker.tasks.views.dead_list": "DeadPage",
            "redis_state.worker.tasks.views.finding": "FoundPage",
            "redis_state.worker.tasks.views.finding_archived": "Archived",
            "redis_state.worker.tasks.views.links": "TaskLink",
            "redis_state.worker.tasks.views.session_list": "SessionTaskPage SessionTasks",
            "redis_state.worker.tasks.views.stream": "TaskView",
            "redis_state.worker.tasks.views.summary": "TaskSummary",
            "redis_state.worker.tasks.views.task_filter": "TaskFilters",
            "redis_state.worker.tasks.waitpoints.ballots": "Decider Escalate Escalation Vote",
            "redis_state.worker.tasks.waitpoints.open_pauses": "OpenPause",
            "redis_state.worker.tasks.waitpoints.pause_model": "Decision Pause",
            "redis_state.worker.tasks.waitpoints.pause_pages": "PausePage",
        },
    )

__all__ = [
    "AgentWorker",
    "Archived",
    "Budget",
    "BulkAction",
    "BulkItem",
    "BulkOutcome",
    "BulkReport",
    "ChildTask",
    "Compensation",
    "DeadPage",
    "Decider",
    "Decision",
    "Escalate",
    "Escalation",
    "FoundPage",
    "FullSnapshot",
    "Guard",
    "Handler",
    "HandlerVersion",
    "KeyLimits",
    "Occurrence",
    "OnBusy",
    "OpenPause",
    "Pause",
    "PausePage",
    "PublishedValue",
    "QueueInfo",
    "QueueKeyInfo",
    "Queues",
    "Rate",
    "RateUse",
    "Rates",
    "Request",
    "RetryPolicy",
    "RunningStep",
    "Schedule",
    "ScheduleView",
    "Schedules",
    "SessionTaskPage",
    "SessionTasks",
    "ShownText",
    "Spent",
    "StepPolicy",
    "StepSnapshot",
    "TaskCancelled",
    "TaskClient",
    "TaskContext",
    "TaskFilters",
    "TaskHandedBack",
    "TaskLink",
    "TaskMessage",
    "TaskStopped",
    "TaskSummary",
    "TaskView",
    "TextReader",
    "TextWriter",
    "UnservedTasks",
    "Vote",
    "WorkerInfo",
    "WorkerRegistry",
    "cleanup_cron",
    "guarded",
    "occurrence_of",
    "retried",
    "versioned",
]
