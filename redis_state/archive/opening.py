"""Which archive the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from redis_state.archive.retention import check_classes
from redis_state.errors import ConfigError
from redis_state.settings import ArchiveClass, Settings

if TYPE_CHECKING:
    from redis_state.archive.protocol import Archive

_SCHEMES = ("postgresql", "postgres")
_LEAST_S = 2 * 3600
_LIFETIMES: Mapping[ArchiveClass, str] = {
    "trajectories": "trajectories_ttl",
    "agent_sessions": "agent_sessions_ttl",
}


def open_archive(settings: Settings) -> Archive:
    """Make the archive that `archive_url` names. No I/O.

    Errors: ConfigError without one, for an unknown scheme, without the extra, and for a class that
    the archive does not have. Lifetimes below two hours are one too: what has ended must be there
    when a worker comes to archive it.
    """
    if settings.archive_url is None:
        raise ConfigError("archive_url is not set")
    url = settings.archive_url.get_secret_value()
    if url.partition("://")[0] not in _SCHEMES:
        raise ConfigError(f"archive_url: known are {', '.join(f'{s}://' for s in _SCHEMES)}")
    lasting = ["finished_task_ttl", "updates_ttl"]
    for name in [*lasting, *(_LIFETIMES[what] for what in sorted(settings.archive_classes))]:
        if getattr(settings, name).total_seconds() < _LEAST_S:
            raise ConfigError(f"{name}: an archive needs 2 hours at least")
    try:
        import_module("psycopg")
    except ImportError:
        raise ConfigError(
            "an archive in PostgreSQL needs the extra: pip install redis_state[postgres]"
        ) from None
    from redis_state.archive.postgres.archive import (  # noqa: PLC0415 - needs the extra
        PostgresArchive,
    )
    from redis_state.postgres.address import shown  # noqa: PLC0415 - as above

    shown("archive_url", settings.archive_url)
    archive = PostgresArchive(settings.archive_url, namespace=settings.namespace)
    check_classes(settings.archive_retention, archive.classes)
    check_classes(settings.archive_classes, archive.classes, setting="archive_classes")
    return archive
