"""The state of the archive: what it has, what waits for it, which of its files are missing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import ArchiveStatus
from redis_state.archive.waiting import ArchiveList
from redis_state.cli.archive.group import archive, reading
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.exit_codes import ExitCode, run
from redis_state.cli.output import harmless, print_json, print_line, print_table
from redis_state.errors import ArchiveUnavailable, ConfigError
from redis_state.stores.archive_list import RecordList


@archive.command()
def status(url: Url = None, as_json: AsJson = False) -> None:
    """Count what is archived, and what waits for it.

    Bytes are those of all namespaces. Status 1 if data files are missing, which it names, or if
    Redis knows another archive.
    """

    async def look() -> dict[str, Any]:
        async with reading(url) as (store, reader):
            known, own = await _identities(store, reader)
            held = await _held(reader, nothing=known is not None and own is None)
            backlog = await ArchiveList(store).backlog()
            records = await RecordList(store.base).backlog()
            kinds = {kind.what: count for kind, count in held.records.items()}
            found = asdict(held) | kinds
            del found["records"]
            return found | {
                "id": own,
                "known_id": known,
                "waiting": backlog.tasks,
                "waiting_s": backlog.oldest_s,
                "sessions_behind": backlog.sessions,
                "sessions_behind_s": backlog.behind_s,
                "waiting_records": records.records,
                "waiting_records_s": records.oldest_s,
            }

    found = run(look())
    if as_json:
        print_json(found)
    else:
        rows = [(name, found[name]) for name in found if name != "missing"]
        print_table(("what", "is"), rows, none="")
        for name in found["missing"]:
            print_line(harmless(f"{name} is missing"))
        if _is_other(found):
            print_line("Redis knows another archive: archivers refuse this one")
    if found["missing"] or _is_other(found):
        raise typer.Exit(ExitCode.FAILED)


async def _identities(
    store: RedisStateStore, reader: ArchiveReader
) -> tuple[str | None, str | None]:
    """Return the ids that Redis knows and that the archive has; None for what is not to be read."""
    try:
        return await KnownArchive(store, reader.archive).look()
    except ArchiveUnavailable:
        # Its user may read what an earlier version has made, and nothing else.
        return None, None


async def _held(reader: ArchiveReader, *, nothing: bool) -> ArchiveStatus:
    """Return what the archive has. If ``nothing`` is at its place, that is no error."""
    try:
        return await reader.archive.status()
    except ArchiveUnavailable:
        if not nothing:
            raise
        return ArchiveStatus(0, 0, 0, 0, None, None)


def _is_other(found: dict[str, Any]) -> bool:
    return found["known_id"] is not None and found["known_id"] != found["id"]


@archive.command(name="drop-missing")
def drop_missing(url: Url = None, as_json: AsJson = False) -> None:
    """Count data files that are missing no more.

    Restore them if you can: a file that comes back later is deleted. `archive run --again` copies
    what Redis still has of them, of updates what follows the last one. Status 0 if there is none.
    """

    async def work() -> list[str]:
        async with reading(url, changes=True) as (_, reader):
            drop: Any = getattr(reader.archive, "drop_missing", None)
            if drop is None:
                raise ConfigError("archive_url: an archive of Parquet files alone has data files")
            return list(await drop())

    found = run(work())
    if as_json:
        print_json(found)
    else:
        print_table(("file",), [(name,) for name in found], none="no file is missing")
