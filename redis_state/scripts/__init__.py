"""The scripts as typed functions. Call sites never see the order of KEYS and ARGV.

Each function has the name of its Lua file, whose header is the contract. Every script is safe to
repeat. It recognises rows by their id, and writes by the id of their call. So a call whose reply
was lost is sent again.
"""

from __future__ import annotations

from redis_state.scripts.loader import SCRIPTS
from redis_state.scripts.primitives.blobs import BlobScripts
from redis_state.scripts.primitives.clocks import ClockScripts
from redis_state.scripts.primitives.copies import CopyKeys, CopyScripts
from redis_state.scripts.primitives.leases import LeaseScripts
from redis_state.scripts.primitives.logs import LogScripts, TraceKeys
from redis_state.scripts.primitives.queues import EndedJob, EndedJobs, QueuedJob, QueueScripts
from redis_state.scripts.primitives.records import TASK_FIELDS, RecordScripts
from redis_state.scripts.primitives.tokens import TokenScripts
from redis_state.scripts.primitives.watch import WatchScripts
from redis_state.scripts.runner import Reply, ReplyCode
from redis_state.scripts.stores.a2a import A2AScripts
from redis_state.scripts.stores.adk import AdkKeys, AdkScripts
from redis_state.scripts.stores.agents import AgentScripts
from redis_state.scripts.stores.archive import ArchiveScripts
from redis_state.scripts.stores.contexts import ContextScripts, PatchKeys
from redis_state.scripts.stores.graphs import GraphKeys, GraphListing, GraphScripts
from redis_state.scripts.stores.groups import GroupKeys, GroupScripts
from redis_state.scripts.stores.jobs import JobScripts
from redis_state.scripts.stores.schedules import ScheduleScripts
from redis_state.scripts.stores.snapshots import SnapshotKeys, SnapshotScripts
from redis_state.scripts.stores.streams import StreamScripts
from redis_state.scripts.stores.tasks.children import ChildrenScripts
from redis_state.scripts.stores.tasks.gatherings import GatheringKeys, GatheringScripts
from redis_state.scripts.stores.tasks.index import IndexedTask, IndexScripts
from redis_state.scripts.stores.tasks.journal import JournalScripts
from redis_state.scripts.stores.tasks.messages import MessageScripts
from redis_state.scripts.stores.tasks.pauses import PauseListKeys, PauseListScripts
from redis_state.scripts.stores.tasks.tasks import TaskScripts
from redis_state.scripts.stores.tasks.turns import KnownTask, KnownTasks, TurnScripts
from redis_state.scripts.values import (
    JOURNAL_BYTES,
    JOURNAL_NAMES,
    JOURNAL_PORTION,
    NO_LANE,
    STARTED_BYTES,
    Announcement,
    Fence,
    LaneState,
    LogLimits,
    TaskKeys,
    raw,
    topic_bytes,
    topic_text,
)


class Scripts(
    LogScripts,
    RecordScripts,
    TokenScripts,
    BlobScripts,
    LeaseScripts,
    AgentScripts,
    WatchScripts,
    QueueScripts,
    JobScripts,
    A2AScripts,
    TaskScripts,
    ChildrenScripts,
    JournalScripts,
    MessageScripts,
    ContextScripts,
    GroupScripts,
    SnapshotScripts,
    ScheduleScripts,
    StreamScripts,
    CopyScripts,
    ClockScripts,
    IndexScripts,
    TurnScripts,
    GatheringScripts,
    PauseListScripts,
    GraphScripts,
    ArchiveScripts,
    AdkScripts,
):
    """The scripts, run through one transport."""


__all__ = [
    "JOURNAL_BYTES",
    "JOURNAL_NAMES",
    "JOURNAL_PORTION",
    "NO_LANE",
    "SCRIPTS",
    "STARTED_BYTES",
    "TASK_FIELDS",
    "AdkKeys",
    "Announcement",
    "CopyKeys",
    "EndedJob",
    "EndedJobs",
    "Fence",
    "GatheringKeys",
    "GraphKeys",
    "GraphListing",
    "GroupKeys",
    "IndexedTask",
    "KnownTask",
    "KnownTasks",
    "LaneState",
    "LogLimits",
    "PatchKeys",
    "PauseListKeys",
    "QueuedJob",
    "Reply",
    "ReplyCode",
    "Scripts",
    "SnapshotKeys",
    "TaskKeys",
    "TraceKeys",
    "raw",
    "topic_bytes",
    "topic_text",
]
