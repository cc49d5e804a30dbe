"""The id of an archive of files: an object of its own beside the log, which is created once."""

from __future__ import annotations

import json
import secrets

from redis_state.archive.parquet.files.log import FileLog
from redis_state.errors import ArchiveUnavailable


def identify(log: FileLog) -> str | None:
    """Return the id; None without a log: who has emptied the folder may have left the id."""
    return _read(log) if log.is_there() else None


def keep_identity(log: FileLog) -> None:
    """Write an id, unless there is one. Of processes that come together the first one's stays."""
    if log.objects.get(_name(log)) is None:
        log.objects.create(_name(log), json.dumps({"id": secrets.token_hex(16)}).encode())


def _read(log: FileLog) -> str | None:
    body = log.objects.get(_name(log))
    if body is None:
        return None
    try:
        found = json.loads(body)["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str) or not found:
        raise ArchiveUnavailable("read", "its archive.json has no id")
    return found


def _name(log: FileLog) -> str:
    return f"{log.folder}/archive.json"
