"""Which archive the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, cast

from redis_state.archive.protocol import Archive, complete
from redis_state.archive.retention import check_classes
from redis_state.errors import ConfigError
from redis_state.payloads.settings import named_object
from redis_state.settings import ArchiveClass, Settings

_POSTGRES = ("postgresql", "postgres")
_PARQUET = ("file", "s3")
_LEAST_S = 2 * 3600
_LASTING = ("finished_task_ttl", "updates_ttl")
_LIFETIMES: Mapping[ArchiveClass, str] = {
    "trajectories": "trajectories_ttl",
    "agent_sessions": "agent_sessions_ttl",
    "events": "events_ttl",
    "artifacts": "artifact_references_ttl",
}


def open_archive(settings: Settings) -> Archive:
    """Make the archive that `archive_url` names, or lend that of `archive_store`. No I/O.

    Errors: ConfigError without one, for both, for an unknown scheme, without the extra, and for a
    class that the archive does not have. Lifetimes below two hours are one too: what has ended must
    be there when a worker comes to archive it.
    """
    archive = _opened(settings) if settings.archive_store is None else _lent(settings)
    for name in [*_LASTING, *(_LIFETIMES[what] for what in sorted(settings.archive_classes))]:
        if getattr(settings, name).total_seconds() < _LEAST_S:
            raise ConfigError(f"{name}: an archive needs 2 hours at least")
    check_classes(settings.archive_retention, archive.classes)
    check_classes(settings.archive_classes, archive.classes, setting="archive_classes")
    return archive


def shortest_lifetime_s(settings: Settings) -> float:
    """Return for how long what is to be archived lives in Redis at least, in seconds."""
    names = [*_LASTING, *(_LIFETIMES[what] for what in settings.archive_classes)]
    shortest: timedelta = min(getattr(settings, name) for name in names)
    return shortest.total_seconds()


class _LentArchive:
    """An archive of the host, which alone closes it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def aclose(self) -> None:
        """Leave it open: others of this process use it."""


def _lent(settings: Settings) -> Archive:
    if settings.archive_url is not None:
        raise ConfigError("archive_url and archive_store cannot both be given")
    return cast("Archive", _LentArchive(complete(named_object(settings, "archive_store"))))


def _opened(settings: Settings) -> Archive:
    url = settings.archive_url
    if url is None:
        raise ConfigError("archive_url is not set")
    scheme = url.get_secret_value().partition("://")[0]
    if scheme not in (*_POSTGRES, *_PARQUET):
        raise ConfigError(
            f"archive_url: known are {', '.join(f'{s}://' for s in (*_POSTGRES, *_PARQUET))}"
        )
    if scheme in _PARQUET:
        _need("parquet", "of Parquet files", "pyarrow", *(["obstore"] if scheme == "s3" else []))
        from redis_state.archive.parquet.archive import (  # noqa: PLC0415 - needs the extra
            ParquetArchive,
        )

        return ParquetArchive(url, namespace=settings.namespace)
    _need("postgres", "in PostgreSQL", "psycopg")
    from redis_state.archive.postgres.archive import (  # noqa: PLC0415 - needs the extra
        PostgresArchive,
    )
    from redis_state.postgres.address import shown  # noqa: PLC0415 - as above

    shown("archive_url", url)
    return PostgresArchive(url, namespace=settings.namespace)


def _need(extra: str, what: str, *packages: str) -> None:
    try:
        for package in packages:
            import_module(package)
    except ImportError:
        raise ConfigError(
            f"an archive {what} needs the extra: pip install redis_state[{extra}]"
        ) from None
