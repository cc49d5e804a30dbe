"""An archive of files beside a plain model of it: any calls in any order leave what they should."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from redis_state.archive.encoding import moment_of_ms
from redis_state.archive.model import ArchiveBatch, ArchivedRow, ArchivedTask, SessionRows
from redis_state.archive.parquet import calls as file_calls
from redis_state.archive.parquet import expiring, retention
from redis_state.archive.parquet.archive import ParquetArchive
from redis_state.archive.queries import ArchiveQuery
from tests.support.sizes import sizes
from tests.support.tasks.archived.archived_tasks import sample_task

_BEGIN_MS = 1_700_000_000_000
_DAY_MS = 86_400_000
_SESSIONS = ("a", "b", "c")


class FilesAndModel:
    """The archive, and what it should have."""

    def __init__(self, folder: Path, chosen: random.Random) -> None:
        self._folder = folder
        self._random = chosen
        self.archive = self.open()
        self.now_ms = _BEGIN_MS
        # All rows since a session was erased, expired or not.
        self.rows: dict[str, list[ArchivedRow]] = {session: [] for session in _SESSIONS}
        self.tasks: dict[tuple[str, str, int], ArchivedTask] = {}
        self.erased_us: dict[str, int] = {}
        self.kept_from_ms = 0

    def open(self) -> ParquetArchive:
        """Open it as another process does."""
        return ParquetArchive(self._folder.as_uri(), namespace="n")

    def last(self, session: str) -> tuple[int, int] | None:
        """Return number and time of a session's last row."""
        rows = self.rows[session]
        return (rows[-1].n, rows[-1].ms) if rows else None

    async def append(self, session: str) -> None:
        """Append rows. At times the log of the session begins again."""
        last = self.last(session)
        first = last[0] if last is not None and self._random.random() < 0.8 else 0
        rows = [
            ArchivedRow(first + n, self.now_ms + n, b"%d" % n, "t", b"[1]")
            for n in range(1, self._random.randrange(2, 6))
        ]
        await self.archive.write(ArchiveBatch(sessions=[SessionRows(session, last, rows)]))
        self.rows[session] += rows

    async def end_task(self, session: str) -> None:
        """Have a task end, for the first time or once more."""
        name, at_ms = f"t{self._random.randrange(4)}", _BEGIN_MS
        if session in self.erased_us:
            at_ms = self.now_ms
        version = (self.now_ms - _BEGIN_MS) // 1000
        task = sample_task(session, name, version, at_ms=at_ms)
        await self.archive.write(ArchiveBatch([task]))
        self.tasks[task.key] = task

    async def forget(self, session: str) -> None:
        """Erase a session; who read it before writes nothing of it."""
        old = sample_task(session, "old", 1, at_ms=_BEGIN_MS)
        rows = SessionRows(session, None, [ArchivedRow(1, _BEGIN_MS + 1, b"x", "t", b"1")])
        await self.archive.forget(session, before_us=self.now_ms * 1000)
        await self.archive.write(ArchiveBatch([old], [rows]))
        self.erased_us[session] = self.now_ms * 1000
        self.rows[session] = []
        self.tasks = {key: task for key, task in self.tasks.items() if key[0] != session}

    async def retain(self, _: str) -> None:
        """Remove what has expired, of some classes, with as many calls as it takes."""
        before_ms = self.now_ms - self._random.randrange(1, 20) * _DAY_MS
        before = moment_of_ms(before_ms)
        classes = self._random.choice([("updates",), ("tasks",), ("tasks", "updates", "sessions")])
        while (await self.archive.retain(dict.fromkeys(classes, before))).more:
            pass
        if "updates" in classes:
            self.kept_from_ms = max(self.kept_from_ms, before_ms)
        if "tasks" in classes:
            left = {key: task for key, task in self.tasks.items() if task.ended_at >= before}
            self.tasks = left
        if "sessions" in classes:
            await self._let_sessions_go(before_ms)

    async def _let_sessions_go(self, before_ms: int) -> None:
        known = await self.archive.last_rows(_SESSIONS)
        for session in _SESSIONS:
            last = self.last(session)
            if last is not None and session not in known:
                assert last[1] < before_ms
                assert not any(key[0] == session for key in self.tasks)
                self.rows[session] = []

    async def compact(self, _: str) -> None:
        """Compact."""
        await self.archive.compact()

    async def reopen(self, _: str) -> None:
        """Let another process go on."""
        self.archive = self.open()

    async def compare(self) -> None:
        """Compare all that is read with the model."""
        last = {session: self.last(session) for session in _SESSIONS}
        there = {session: place for session, place in last.items() if place is not None}
        assert await self.archive.last_rows(_SESSIONS) == there
        assert await self.archive.erased(_SESSIONS) == self.erased_us
        found = {task.key: task for task in await self.archive.tasks(ArchiveQuery(limit=999))}
        assert found == self.tasks
        for session, rows in self.rows.items():
            kept = [row for row in rows if row.ms >= self.kept_from_ms]
            assert await self.archive.rows(session, after=None, count=999) == kept
            if rows:
                row = self._random.choice(rows)
                behind = [each for each in rows if each.place > row.place]
                seen = await self.archive.rows(session, after=(row.n, row.ms), count=999)
                assert seen == (behind if row.ms >= self.kept_from_ms else None)


@pytest.mark.parametrize("seeds", sizes(range(1), range(40)))
async def test_any_calls_leave_what_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(file_calls, "GRACE", timedelta(0))
    for seed in seeds:
        chosen = random.Random(seed)
        monkeypatch.setattr(retention, "_MOST", chosen.choice([3, 10, 500]))
        monkeypatch.setattr(expiring, "_LARGE", chosen.choice([1, 1 << 20]))
        both = FilesAndModel(tmp_path / str(seed), chosen)
        await both.archive.prepare()
        calls: list[Callable[[str], Awaitable[None]]] = [
            *[both.append] * 5,
            *[both.end_task] * 2,
            *(both.forget, both.retain, both.retain, both.compact, both.reopen),
        ]
        for _ in range(40):
            both.now_ms += chosen.randrange(1, 4 * _DAY_MS)
            await chosen.choice(calls)(chosen.choice(_SESSIONS))
            await both.compare()
