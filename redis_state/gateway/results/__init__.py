"""The shapes of answers, for OpenAPI. `redis_state.gateway.documents` writes them."""

from __future__ import annotations

from redis_state.gateway.results.base import (
    DeletedResult,
    ErrorFacts,
    ErrorResult,
    HealthResult,
    LinkResult,
    ResultShape,
)
from redis_state.gateway.results.changes import (
    BulkItemResult,
    BulkResult,
    MadeResult,
    MovedResult,
    SteeredResult,
    SubmittedResult,
)
from redis_state.gateway.results.messages import (
    FoundValueResult,
    SignalledResult,
    ValueResult,
    ValuesResult,
)
from redis_state.gateway.results.pauses import (
    DecidedResult,
    DeciderResult,
    DelegatedResult,
    EscalationResult,
    PauseResult,
    PausesResult,
)
from redis_state.gateway.results.queues import (
    KeyLimitsResult,
    QueueResult,
    QueuesResult,
    RateResult,
)
from redis_state.gateway.results.schedules import OccurrenceResult, ScheduleResult, SchedulesResult
from redis_state.gateway.results.sessions import ErasureResult, SessionResult, SessionsResult
from redis_state.gateway.results.tasks import (
    BranchResult,
    CompensationResult,
    FullStepResult,
    RowResult,
    RunningResult,
    StateResult,
    StepResult,
    StepsResult,
    SummaryResult,
    TaskBranchResult,
    TaskResult,
    TasksResult,
    TimelineResult,
    TreeResult,
)
from redis_state.gateway.results.workers import WorkerResult, WorkersResult

__all__ = [
    "BranchResult",
    "BulkItemResult",
    "BulkResult",
    "CompensationResult",
    "DecidedResult",
    "DeciderResult",
    "DelegatedResult",
    "DeletedResult",
    "ErasureResult",
    "ErrorFacts",
    "ErrorResult",
    "EscalationResult",
    "FoundValueResult",
    "FullStepResult",
    "HealthResult",
    "KeyLimitsResult",
    "LinkResult",
    "MadeResult",
    "MovedResult",
    "OccurrenceResult",
    "PauseResult",
    "PausesResult",
    "QueueResult",
    "QueuesResult",
    "RateResult",
    "ResultShape",
    "RowResult",
    "RunningResult",
    "ScheduleResult",
    "SchedulesResult",
    "SessionResult",
    "SessionsResult",
    "SignalledResult",
    "StateResult",
    "SteeredResult",
    "StepResult",
    "StepsResult",
    "SubmittedResult",
    "SummaryResult",
    "TaskBranchResult",
    "TaskResult",
    "TasksResult",
    "TimelineResult",
    "TreeResult",
    "ValueResult",
    "ValuesResult",
    "WorkerResult",
    "WorkersResult",
]
