"""The archive: what has ended leaves Redis, and stays readable.

The archiver runs in every worker that has `archive_url`. `docs/explanation/archive.md` lists its
crash points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.lazy import lazily

if TYPE_CHECKING:
    from redis_state.archive.model import ArchivedSession, ArchivedTask, ArchiveStatus, RecordKind
    from redis_state.archive.opening import open_archive
    from redis_state.archive.protocol import Archive
    from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
    from redis_state.archive.reading.artifacts import KeptArtifact
    from redis_state.archive.reading.history import EventCursor, EventHistory
    from redis_state.archive.reading.reader import ArchiveReader, ReadRecord
    from redis_state.archive.waiting import ArchiveBacklog
    from redis_state.stores.archive_list import RecordBacklog
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "redis_state.archive.model": "ArchivedSession ArchivedTask ArchiveStatus RecordKind",
            "redis_state.archive.opening": "open_archive",
            "redis_state.archive.protocol": "Archive",
            "redis_state.archive.queries": "ArchivedPage ArchiveListing ArchiveQuery",
            "redis_state.archive.reading.artifacts": "KeptArtifact",
            "redis_state.archive.reading.history": "EventCursor EventHistory",
            "redis_state.archive.reading.reader": "ArchiveReader ReadRecord",
            "redis_state.archive.waiting": "ArchiveBacklog",
            "redis_state.stores.archive_list": "RecordBacklog",
        },
    )

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
