"""What an archive must be able to do. Each call has a deadline; all may be repeated.

Calls that may read or write all that is kept have a longer one, of many minutes: `shared_traces`,
`sessions_of`, `owners_with`, `status`, `forget`, `forget_records` and `retain`.

Errors of every call: ArchiveUnavailable if the archive cannot be reached, refuses the call, or says
nothing by the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from inspect import isclass
from math import inf
from typing import Any, Final, Protocol, TypeVar

from redis_state.archive.model import (
    ArchiveBatch,
    ArchivedRecord,
    ArchivedRow,
    ArchivedSession,
    ArchivedTask,
    ArchiveStatus,
    ArchiveVerdict,
    RecordKind,
    RecordPlace,
)
from redis_state.archive.queries import ArchivedPage, ArchiveListing, ArchiveQuery
from redis_state.archive.retention import RetentionReport
from redis_state.errors import ConfigError

ArchiveT = TypeVar("ArchiveT", bound="Archive")

# So many calls of one archive are made at a time, each over a connection or in a thread of its own.
AT_ONCE: Final = 4
# The loop's time after which the caller of an archive waits no longer. A call of an archive that
# goes on behind it holds up others.
patience: ContextVar[float] = ContextVar("patience", default=inf)
# What is set once the archive has answered a call of the caller: it may take long, and is not away.
answered: ContextVar[asyncio.Event | None] = ContextVar("answered", default=None)
# Where the caller of an archive gets the names of data files that are gone: its calls do without
# them. Without such a set they raise ArchiveFileMissing.
overlooked: ContextVar[set[str] | None] = ContextVar("overlooked", default=None)


def has_answered() -> None:
    """Note that a call of an archive was answered."""
    heard = answered.get()
    if heard is not None:
        heard.set()


class CallTurns(asyncio.Semaphore):
    """Whose turn it is: some calls at a time, the others in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(AT_ONCE)
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def all(self) -> AsyncGenerator[None]:
        """Wait until no call is made, and let none begin."""
        async with self._alone, AsyncExitStack() as turns:
            for _ in range(AT_ONCE):
                await turns.enter_async_context(self)
            yield


class Archive(Protocol):
    """A place where what has ended is kept, for one namespace."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of data that it keeps, as `retain` takes them: ``tasks``, ``updates``, ..."""
        ...

    async def prepare(self) -> None:
        """Make what the archive needs, its id too, unless it is there.

        Several processes may call it.
        """
        ...

    async def identify(self) -> str | None:
        """Return the archive's id; None if there is none, or it was never prepared.

        It makes nothing. Namespaces of one archive may have one id.
        """
        ...

    async def write(self, batch: ArchiveBatch) -> None:
        """Write a batch: all of it, or nothing. What is there already is not written again.

        What began before its session was erased (see `forget`) is left out, in the same step. A
        later version of a task or a record replaces an earlier one; never the other way round,
        except for one whose ``replaces`` is the stamp of what is there.
        """
        ...

    async def verify(self, batch: ArchiveBatch) -> ArchiveVerdict:
        """Compare a batch with what is kept, by count and by digest of what is read there."""
        ...

    async def last_rows(self, session_ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return number and time of the last row that was written of each session, if any."""
        ...

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what there is of a session, or None."""
        ...

    async def tasks(self, query: ArchiveQuery) -> list[ArchivedTask]:
        """Return tasks, the last that ended first. An id that was used again has several.

        There are fewer than the limit where tasks are large, but one if there is one. Those behind
        the last one follow its `end`; an empty page is the end of all.
        """
        ...

    async def find(self, listing: ArchiveListing) -> ArchivedPage:
        """List tasks that match every filter, in the order of their places: see `ArchiveListing`.

        Of an id that was used again only the last task, the one that was born last. The journals
        are left out: they are empty. An archive reads a bounded number of tasks for a page, so that
        a page costs the page, and may be short.
        """
        ...

    async def rows(
        self,
        session_id: str,
        *,
        after: tuple[int, int] | None,
        count: int,
        over_gaps: bool = False,
    ) -> list[ArchivedRow] | None:
        """Return up to ``count`` rows behind a row's number and time, the oldest first.

        There are fewer where rows are large, but one if there is one. Rows that the server has lost
        are left out. None if rows between that one and the next may be missing: it is not kept, or
        what was between was dropped. The place just before the next row, of its time and of the
        number before its own, needs no row. With ``over_gaps`` never None: the rows that are kept
        behind it.
        """
        ...

    async def records(
        self,
        kind: RecordKind,
        owner: str,
        *,
        key: str | None = None,
        after: RecordPlace | None = None,
        limit: int = 100,
    ) -> list[ArchivedRecord]:
        """Return records of an owner behind a place, in the order of their places.

        ``key`` wants those of one key: one for each birth, and for each number of a row. There are
        fewer than ``limit`` where records are large, but one if there is one: an empty page is the
        end.
        """
        ...

    async def last_records(
        self, kind: RecordKind, owners: Sequence[str], *, before_us: int | None = None
    ) -> Mapping[str, RecordPlace]:
        """Return the place of the last record of a kind that each owner has, if it has any.

        With ``before_us`` the last of those that were born before that time.
        """
        ...

    async def forget_records(
        self, kind: RecordKind, owners: Collection[str], *, before_us: int
    ) -> int:
        """Erase owners' records of a kind that no session owns; return how many there were.

        It is one step for all of them. A mark of each stays, as `forget` leaves one: `erased` has
        it under `scope_of` the two.
        """
        ...

    async def count_records(self, kind: RecordKind, owners: Collection[str]) -> int:
        """Count owners' records of a kind."""
        ...

    async def first_places(
        self, kind: RecordKind, owner: str, keys: Collection[str]
    ) -> Mapping[str, RecordPlace]:
        """Return of each key the place of an owner's first record that has it, if any has."""
        ...

    async def shared_traces(
        self, trace_ids: Collection[str], *, besides: Collection[str]
    ) -> frozenset[str]:
        """Return those of the traces that a session has which is none of ``besides``.

        A session has a trace if a task or a trajectory of it is kept.
        """
        ...

    async def status(self) -> ArchiveStatus:
        """Count what is kept."""
        ...

    async def forget(
        self, session_id: str, *, before_us: int | None = None
    ) -> ArchivedSession | None:
        """Erase a session in one step; return what there was of it, or None.

        With ``before_us``, a time of the Redis server, a mark stays that has a digest of the id:
        tasks born and rows appended before that time are never written again, by any process.
        Later ones are. Of two marks the later time stands. May be repeated.
        """
        ...

    async def erased(self, scopes: Sequence[str]) -> Mapping[str, int]:
        """Return up to which time of the Redis server scopes were erased, in us, if any were.

        That of a session is its `session_scope`.
        """
        ...

    async def sessions_of(
        self, attribute: str, value: Any, *, also: Collection[str] = ()
    ) -> Mapping[str, bool]:
        """Return the sessions that have a task with this attribute.

        Each with whether it has a task with another value of it, too. Of the sessions in
        ``also`` those are in it too that have another value alone.
        """
        ...

    async def owners_with(self, kind: RecordKind, parts: Collection[bytes]) -> frozenset[str]:
        """Return the owners of records of a kind whose data has any of these bytes somewhere.

        It reads all records of the kind.
        """
        ...

    async def retain(
        self, before: Mapping[str, datetime], *, dry_run: bool = False
    ) -> RetentionReport:
        """Remove of each class what ended, or was appended, before a moment.

        A call removes a bounded part, whole partitions first. Its report says whether there is
        more. May be repeated, and called by several processes. Its last call deletes what other
        calls have left that died some minutes ago, also if nothing is to be removed. Errors:
        ConfigError for a class that the archive does not have.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect."""
        ...


_METHODS: Final = tuple(
    name for name, each in vars(Archive).items() if callable(each) and not name.startswith("_")
)


def complete(archive: ArchiveT) -> ArchiveT:
    """Return an archive that can do all that an `Archive` must.

    Errors: ConfigError names what an archive of the host's own lacks, such as a method of a later
    version.
    """
    lacks = [name for name in _METHODS if not callable(getattr(archive, name, None))]
    lacks += [] if hasattr(archive, "classes") else ["classes"]
    given: Any = archive
    if lacks or isclass(given):
        kind = f"the class {given.__name__}" if isclass(given) else type(given).__name__
        raise ConfigError(
            f"{kind} is no Archive: {', '.join(lacks) or 'an object of it is needed'}"
        )
    return archive
