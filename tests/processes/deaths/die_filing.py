"""Processes that kill themselves at each call of the store of an archive's files, in turn.

Each does a part of what archivers do: it writes, compacts, removes what has expired, or erases.
Another process looks at what it left, and repeats it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    RecordKind,
    SessionRows,
    rows_digest,
)
from redis_state.archive.parquet import archive as archives
from redis_state.archive.parquet import calls
from redis_state.archive.parquet.files.objects import FolderObjects
from redis_state.archive.queries import ArchiveQuery
from tests.processes.deaths.dying import COUNTED, Death, die_at_each_trip, fork, join
from tests.support.tasks.archived.archived_tasks import sample_task

# Its types are of little use here.
reading: Any = import_module("pyarrow.parquet")
# Of files that were compacted a part has expired, so they are written again.
PHASES = ("write", "compact", "retain", "retain compacted", "forget")
_SESSIONS = ("a", "b", "c")
_DAY_MS = 86_400_000
_BEGIN_MS = 1_700_000_000_000
_DAYS = 6
_KINDS = (RecordKind.TRAJECTORY, RecordKind.AGENT_SESSION)
# What there is of each session: its tasks, the digest of its rows, and its records.
Digests: TypeAlias = tuple[tuple[str, str], ...]
State: TypeAlias = dict[str, tuple[Digests, str, Digests]]


@dataclass
class FilingDeath(Death):
    """Kill this process at its n-th call. A file gets its name when its content is on the disk."""

    def plant(self) -> None:
        """Count the calls of the store, and those of the system that make or remove a name."""
        for name in ("get", "open", "create", "names", "delete"):
            self._watch(FolderObjects, name)
        self._watch(os, "link")
        self._watch(Path, "unlink")

    def _watch(self, owner: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if not self._reached(name):
                return call(*arguments, **options)
            self._die_if("before")
            found = call(*arguments, **options)
            self._die_if("after")
            return found

        setattr(owner, name, watched)


@dataclass
class FilingCase:
    """One death: in which phase, and at which of its calls."""

    folder: Path
    phase: str
    edge: str
    at: int

    def _open(self) -> archives.ParquetArchive:
        # What does not count is deleted at once: nobody else reads.
        setattr(calls, "GRACE", timedelta(0))  # noqa: B010 - it is imported there
        return archives.ParquetArchive(self.folder.as_uri(), namespace="n")

    def prepare(self) -> None:
        """Have what is there before: a copy of what a process has made for other deaths too."""
        name = {"write": "half", "retain compacted": "compacted"}.get(self.phase, "whole")
        made = self.folder.parent / f"{name}-{self.edge}"
        if not made.exists():
            status, problem = join(*fork(replace(self, folder=made).make))
            assert status == 0, problem
        shutil.copytree(made, self.folder)

    async def make(self, _: int) -> None:
        """Write what is there before."""
        archive = self._open()
        await archive.prepare()
        days = _DAYS if self.phase != "write" else _DAYS // 2
        for day in range(days):
            await archive.write(_batch(day))
        if self.phase == "retain compacted":
            await archive.compact()

    async def die(self, stated: int) -> None:
        """Die on the way. To return is to survive."""
        archive = self._open()
        FilingDeath(self.at, self.edge, stated).plant()
        COUNTED.set(True)
        await self._work(archive)

    async def recover(self, _: int) -> list[str]:
        """Tell what is wrong before the repetition, and after."""
        archive = self._open()
        found, after = await _state(archive), _wanted(self.phase)
        problems: list[str] = []
        if found not in self._allowed():
            problems.append(f"between: {found}")
        await self._work(archive)
        found = await _state(archive)
        if found != after:
            problems.append(f"after: {found}")
        if self.phase == "forget" and self._has("b"):
            problems.append("a file has what was erased")
        await archive.compact()
        if await _state(archive) != after:
            problems.append("compacted: it differs")
        counted = sum(archive.known_files().values())
        kept = [path for path in self.folder.rglob("*") if path.is_file()]
        data = [path for path in kept if path.suffix == ".parquet"]
        if len(data) != counted or any(path.name.startswith(".") for path in kept):
            problems.append(f"{len(kept)} files, and {counted} count")
        return problems

    async def _work(self, archive: archives.ParquetArchive) -> None:
        match self.phase:
            case "write":
                await archive.prepare()
                for day in range(_DAYS // 2, _DAYS):
                    await archive.write(_batch(day))
            case "compact":
                await archive.compact()
            case "retain" | "retain compacted":
                before = moment_of_ms(_BEGIN_MS + 3 * _DAY_MS - 1)
                while (await archive.retain(dict.fromkeys(archive.classes, before))).more:
                    pass
            case _:
                await archive.forget("b", before_us=(_BEGIN_MS + _DAYS * _DAY_MS) * 1000)
                # Who read it before writes nothing of it.
                late = [sample_task("b", "t0", 3, at_ms=_BEGIN_MS)]
                await archive.write(ArchiveBatch(late, records=_records("b", 0)))

    def _allowed(self) -> list[State]:
        if self.phase == "write":
            return [_first(days) for days in range(_DAYS // 2, _DAYS + 1)]
        return [_first(_DAYS), _wanted(self.phase)]

    def _has(self, session: str) -> bool:
        files = self.folder.rglob("*.parquet")
        tables: list[Any] = [reading.read_table(path) for path in files]
        owners = ("session_id", "owner")
        named = [(table, name) for table in tables for name in owners if name in table.column_names]
        return any(session in table[name].to_pylist() for table, name in named)


def _batch(day: int) -> ArchiveBatch:
    """Make a task of each session for a day, the first one at a later version, and two rows."""
    at_ms = _BEGIN_MS + day * _DAY_MS
    tasks = [sample_task(session, f"t{day}", 3, at_ms=at_ms) for session in _SESSIONS]
    tasks += [sample_task(session, "t0", 3 + day, at_ms=_BEGIN_MS) for session in _SESSIONS[:1]]
    after = (2 * day, at_ms - _DAY_MS + 1) if day else None
    rows = [ArchivedRow(2 * day + n, at_ms + n - 1, b"%d" % n, "t", b"[1]") for n in (1, 2)]
    records = [each for session in _SESSIONS for each in _records(session, day)]
    # A later state of the first one.
    later = replace(_records("a", 0)[0], version=1 + day, write=f"w{day}", data=b"later %d" % day)
    records += [later] if day else []
    sessions = [SessionRows(session, after, rows) for session in _SESSIONS]
    return ArchiveBatch(tasks, sessions, records)


def _records(session: str, day: int) -> list[ArchivedRecord]:
    """Make a session's records of a day, one of each class."""
    at_us = (_BEGIN_MS + day * _DAY_MS) * 1000
    return [
        ArchivedRecord(kind, session, f"k{day}", at_us, at_us, b"%d" % day, version=1, write="w")
        for kind in _KINDS
    ]


def _first(days: int, *, since: int = 0) -> State:
    """Return what there is once the batches of some days are written."""
    batches = [_batch(day) for day in range(days)]
    found: State = {}
    for session in _SESSIONS:
        tasks = {
            task.task_id: task.digest()
            for batch in batches
            for task in batch.tasks
            if task.session_id == session and int(task.task_id[1:]) >= since
        }
        of_session = [each for batch in batches[since:] for each in batch.sessions]
        rows = [row for each in of_session if each.session_id == session for row in each.rows]
        records = {
            f"{each.kind} {each.key}": f"{each.stamp} {each.digest()}"
            for batch in batches
            for each in batch.records
            if each.owner == session and int(each.key[1:]) >= since
        }
        kept = tuple(sorted(tasks.items())), rows_digest(rows), tuple(sorted(records.items()))
        found[session] = kept
    return found


def _wanted(phase: str) -> State:
    """Return what there is in the end."""
    match phase:
        case "retain" | "retain compacted":
            return _first(_DAYS, since=3)
        case "forget":
            return {**_first(_DAYS), "b": ((), rows_digest(()), ())}
        case _:
            return _first(_DAYS)


async def _state(archive: archives.ParquetArchive) -> State:
    found: State = {}
    for session in _SESSIONS:
        tasks = await archive.tasks(ArchiveQuery(session_id=session))
        rows = await archive.rows(session, after=None, count=1000)
        digests = sorted((task.task_id, task.digest()) for task in tasks)
        records = [each for kind in _KINDS for each in await archive.records(kind, session)]
        states = sorted(
            (f"{each.kind} {each.key}", f"{each.stamp} {each.digest()}") for each in records
        )
        found[session] = (tuple(digests), rows_digest(rows or ()), tuple(states))
    return found


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die before, or after, each ``stride``-th call of each phase."""
    results: list[dict[str, Any]] = []
    for phase in PHASES:
        case_at = partial(_case_at, Path(argument["folder"]), phase, argument["edge"])
        deaths = die_at_each_trip(argument | {"namespace": phase}, case_at)
        results += [{"phase": phase} | death for death in deaths]
    return results


def _case_at(folder: Path, phase: str, edge: str, at: int, name: str) -> FilingCase:
    case = FilingCase(folder / name, phase, edge, at)
    case.prepare()
    return case


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
