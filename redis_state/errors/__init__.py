"""Every error that leaves the library.

    RedisStateError
    ├── CallerError            the call was wrong; nothing was sent
    │   ├── ConfigError            a setting or an address cannot be used
    │   ├── InvalidField           an argument of a wrong type or shape, named
    │   │   └── PayloadTooLarge        a payload is larger than may be stored
    │   ├── InvalidDecision        a pause's value does not fit the pause's form
    │   ├── SteeringValidationError    a steering payload breaks the rules of its type
    │   ├── MissingCapability      a store lacks methods that a feature needs
    │   ├── MemoryBudgetExceeded   a turn exceeds a memory's budget
    │   └── HandlerChanged         a handler did not use an entry that earlier runs recorded
    ├── LostRace               the stored state does not allow the call: read it again
    │   ├── Conflict               another call was first; the error carries the facts
    │   │   ├── VersionConflict        another write came first
    │   │   │   └── SessionConflict        the same, for an agent's session
    │   │   ├── SessionBusy            another caller executes the session
    │   │   ├── SessionRunning         tasks of the session run, and it is to be erased
    │   │   ├── ErasureOutOfReach      an archive has more, and none is set here
    │   │   ├── ArchiveInUse           what is held for the archive is not let go of meanwhile
    │   │   ├── TaskInProgress         a task of the session is unfinished, and rejects another
    │   │   ├── LeaseLost              the epoch is no longer the current one
    │   │   ├── ThreadClaimed          another process has claimed the thread of LangGraph
    │   │   ├── ThreadMoved            another task has continued the thread of LangGraph
    │   │   ├── TokenResolved          the token is already resolved: by whom, when and how
    │   │   ├── AlreadyVoted           the actor has voted otherwise: when and which way
    │   │   ├── NotADecider            the pause names others to decide it
    │   │   ├── DelegationRefused      the vote cannot be handed to this actor
    │   │   ├── InvalidTransition      the task's status does not allow the change
    │   │   ├── RetryRefused           the task cannot be reopened, whatever its status
    │   │   ├── StreamRefused          the stream is closed, or another one than the call means
    │   │   ├── ProducerRefused        the producer's batch is not the next one
    │   │   ├── KeyReused              the key was used before, with another content
    │   │   └── LimitReached           the limit of pending things is reached
    │   └── NotFound               there is none, or no longer
    │       ├── SessionNotFound        an agent's session
    │       ├── ScheduleUnknown        a schedule
    │       ├── StreamUnknown          a durable stream
    │       │   └── StreamDeleted          it was deleted, and its forks are kept
    │       ├── TokenUnknown           a token
    │       └── TaskUnknown            a task
    ├── CursorGap              rows between the cursor and what is kept are missing
    ├── TaskNotCompleted       a terminal task has no result
    │   ├── TaskFailed             it is FAILED
    │   └── TaskWasCancelled       it is CANCELLED
    ├── PauseTimeout           a pause was not resolved in time
    ├── PauseRejected          a pause was rejected, and its handler ends
    ├── ReceiveTimeout         no message came in time
    ├── InvalidMessage         a message is not of the type that its receiver needs
    ├── RequestFailed          a request to a task got no answer
    │   ├── RequestRefused         the handler refused it
    │   ├── RequestUnanswered      the task ended before it replied
    │   └── RequestTimeout         no reply came in time
    │       └── NoReceiver             and the handler has never asked for requests of the name
    └── BackendError           trouble with the server
        ├── NoConnection           no usable connection
        │   ├── BackendUnavailable     the server cannot be reached; the call did not happen
        │   │   └── OutcomeUnknown         the connection broke; the call may have happened
        │   └── AuthenticationFailed   the server refuses the login; the call did not happen
        ├── StoreFull              the server refuses writes: no memory or disk; reads work
        ├── JournalRewound         the server lost entries of a task's journal
        ├── CommandRefused         the server refused the command for another reason
        ├── PayloadUnreadable      a payload is encrypted, and this process lacks the key
        ├── PayloadStoreUnavailable    the store of large payloads cannot be used now
        ├── ArchiveUnavailable     the archive cannot be used now
        │   ├── ArchiveFileMissing     one of its data files is gone
        │   └── OtherArchive           it is not the one that Redis knows
        └── CorruptState           the stored data is damaged
            └── PayloadLost            a large payload is gone from its store, or damaged there

Four branches say what to do: correct the call, read the state again, accept that there is none, or
try again later. The others are not about a call: a reader's position, a task's end, a pause's end,
messages.

No text of an error holds a payload, a token or a password.
"""

from __future__ import annotations

from redis_state.errors.backend import (
    ArchiveFileMissing,
    ArchiveUnavailable,
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    CommandRefused,
    CorruptState,
    JournalRewound,
    NoConnection,
    OtherArchive,
    OutcomeUnknown,
    PayloadLost,
    PayloadStoreUnavailable,
    PayloadUnreadable,
    StoreFull,
)
from redis_state.errors.base import LostRace, RedisStateError
from redis_state.errors.caller import (
    CallerError,
    ConfigError,
    HandlerChanged,
    InvalidDecision,
    InvalidField,
    MemoryBudgetExceeded,
    MissingCapability,
    PayloadTooLarge,
    SteeringValidationError,
)
from redis_state.errors.conflicts import (
    AlreadyVoted,
    ArchiveInUse,
    Conflict,
    DelegationRefused,
    ErasureOutOfReach,
    InvalidTransition,
    KeyReused,
    LeaseLost,
    LimitReached,
    NotADecider,
    ProducerRefused,
    RetryRefused,
    SessionBusy,
    SessionConflict,
    SessionRunning,
    StreamRefused,
    TaskInProgress,
    ThreadClaimed,
    ThreadMoved,
    TokenResolved,
    VersionConflict,
)
from redis_state.errors.not_found import (
    NotFound,
    ScheduleUnknown,
    SessionNotFound,
    StreamDeleted,
    StreamUnknown,
    TaskUnknown,
    TokenUnknown,
)
from redis_state.errors.outcomes import (
    CursorGap,
    InvalidMessage,
    NoReceiver,
    PauseRejected,
    PauseTimeout,
    ReceiveTimeout,
    RequestFailed,
    RequestRefused,
    RequestTimeout,
    RequestUnanswered,
    TaskFailed,
    TaskNotCompleted,
    TaskWasCancelled,
)

__all__ = [
    "AlreadyVoted",
    "ArchiveFileMissing",
    "ArchiveInUse",
    "ArchiveUnavailable",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "CallerError",
    "CommandRefused",
    "ConfigError",
    "Conflict",
    "CorruptState",
    "CursorGap",
    "DelegationRefused",
    "ErasureOutOfReach",
    "HandlerChanged",
    "InvalidDecision",
    "InvalidField",
    "InvalidMessage",
    "InvalidTransition",
    "JournalRewound",
    "KeyReused",
    "LeaseLost",
    "LimitReached",
    "LostRace",
    "MemoryBudgetExceeded",
    "MissingCapability",
    "NoConnection",
    "NoReceiver",
    "NotADecider",
    "NotFound",
    "OtherArchive",
    "OutcomeUnknown",
    "PauseRejected",
    "PauseTimeout",
    "PayloadLost",
    "PayloadStoreUnavailable",
    "PayloadTooLarge",
    "PayloadUnreadable",
    "ProducerRefused",
    "ReceiveTimeout",
    "RedisStateError",
    "RequestFailed",
    "RequestRefused",
    "RequestTimeout",
    "RequestUnanswered",
    "RetryRefused",
    "ScheduleUnknown",
    "SessionBusy",
    "SessionConflict",
    "SessionNotFound",
    "SessionRunning",
    "SteeringValidationError",
    "StoreFull",
    "StreamDeleted",
    "StreamRefused",
    "StreamUnknown",
    "TaskFailed",
    "TaskInProgress",
    "TaskNotCompleted",
    "TaskUnknown",
    "TaskWasCancelled",
    "ThreadClaimed",
    "ThreadMoved",
    "TokenResolved",
    "TokenUnknown",
    "VersionConflict",
]

# One name of each class in tracebacks, pickles and records: the one that callers import.
for _name in __all__:
    globals()[_name].__module__ = __name__
