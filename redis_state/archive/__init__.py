"""The archive: what has ended leaves Redis, and stays readable.

The archiver runs in every worker that has `archive_url`. `docs/explanation/archive.md` lists its
crash points.
"""

from __future__ import annotations

from redis_state.archive.model import ArchivedSession, ArchivedTask, ArchiveStatus, RecordKind
from redis_state.archive.opening import open_archive
from redis_state.archive.protocol import Archive
from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
from redis_state.archive.reading.artifacts import KeptArtifact
from redis_state.archive.reading.history import EventCursor, EventHistory
from redis_state.archive.reading.reader import ArchiveReader, ReadRecord
from redis_state.archive.waiting import ArchiveBacklog
from redis_state.stores.archive_list import RecordBacklog

__all__ = [
    "Archive",
    "ArchiveBacklog",
    "ArchiveListing",
    "ArchiveQuery",
    "ArchiveReader",
    "ArchiveStatus",
    "ArchivedPage",
    "ArchivedSession",
    "ArchivedTask",
    "EventCursor",
    "EventHistory",
    "KeptArtifact",
    "ReadRecord",
    "RecordBacklog",
    "RecordKind",
    "open_archive",
]
