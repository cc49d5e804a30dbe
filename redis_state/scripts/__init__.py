"""The scripts as typed functions. Call sites never see the order of KEYS and ARGV.

Each function has the name of its Lua file, whose header is the contract. Every script is safe to
repeat. It recognises rows by their id, and writes by the id of their call. So a call whose reply
was lost is sent again.
"""

from __future__ import annotations

from redis_state.scripts.a2a import A2AScripts
from redis_state.scripts.agents import AgentScripts
from redis_state.scripts.blobs import BlobScripts
from redis_state.scripts.children import ChildrenScripts
from redis_state.scripts.contexts import ContextScripts, PatchKeys
from redis_state.scripts.groups import GroupKeys, GroupScripts
from redis_state.scripts.jobs import JobScripts
from redis_state.scripts.journal import JournalScripts
from redis_state.scripts.leases import LeaseScripts
from redis_state.scripts.loader import SCRIPTS
from redis_state.scripts.logs import LogScripts, TraceKeys
from redis_state.scripts.records import TASK_FIELDS, RecordScripts
from redis_state.scripts.runner import Reply, ReplyCode
from redis_state.scripts.snapshots import SnapshotKeys, SnapshotScripts
from redis_state.scripts.tasks import TaskScripts
from redis_state.scripts.tokens import TokenScripts
from redis_state.scripts.values import (
    NO_LANE,
    Announcement,
    Fence,
    LaneState,
    LogLimits,
    TaskKeys,
    raw,
    topic_bytes,
    topic_text,
)
from redis_state.scripts.watch import WatchScripts


class Scripts(
    LogScripts,
    RecordScripts,
    TokenScripts,
    BlobScripts,
    LeaseScripts,
    AgentScripts,
    WatchScripts,
    JobScripts,
    A2AScripts,
    TaskScripts,
    ChildrenScripts,
    JournalScripts,
    ContextScripts,
    GroupScripts,
    SnapshotScripts,
):
    """The scripts, run through one transport."""


__all__ = [
    "NO_LANE",
    "SCRIPTS",
    "TASK_FIELDS",
    "Announcement",
    "Fence",
    "GroupKeys",
    "LaneState",
    "LogLimits",
    "PatchKeys",
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
