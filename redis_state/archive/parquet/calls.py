"""Calls of files, which block: each in a thread of its own, and tried again if they change."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import TypeVar, cast

from redis_state.archive.parquet.files.columns import pa
from redis_state.archive.parquet.files.compacting import GRACE, clean, compact
from redis_state.archive.parquet.files.footers import Footers
from redis_state.archive.parquet.files.identity import identify, keep_identity
from redis_state.archive.parquet.files.log import FileGone, FileLog
from redis_state.archive.parquet.files.objects import Objects
from redis_state.archive.parquet.files.reading import FileReader
from redis_state.archive.parquet.files.writing import FileChanges, FileWriting, delete_files
from redis_state.archive.protocol import CallTurns, has_answered, overlooked
from redis_state.errors import ArchiveFileMissing, ArchiveUnavailable
from redis_state.timeouts import timeout

T = TypeVar("T")

_ATTEMPTS = 3
# So many threads at most, with those that nobody waits for any more.
_MOST_THREADS = 32
# The files that are gone, and that a call does without. Each thread has a context of its own.
_without: ContextVar[frozenset[str]] = ContextVar("without", default=frozenset())
# The log of the call that runs in a thread: calls read and commit beside each other.
_bound: ContextVar[FileLog | None] = ContextVar("bound", default=None)


class ArchiveCall:
    """A call in a thread. Once nobody waits for it, it reads no file and commits nothing.

    Nor does it behind its deadline: the process may have been stopped, with all that waits for it.
    """

    def __init__(self, limit_s: float) -> None:
        self.over: bool = False
        self._until = monotonic() + limit_s

    def may_continue(self) -> bool:
        """Return whether the call may still read and commit."""
        return not self.over and monotonic() < self._until


async def in_thread(work: Callable[[], T]) -> T:
    """Run what blocks in a thread that keeps no process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(found: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", found))

    def run() -> None:
        found, problem = None, None
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            problem = error
        # The loop may be closed by then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, problem)

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=[run], name="redis-state-archive", daemon=True
    ).start()
    return await future


class FileCalls:
    """The files of one namespace, and calls of them: some at a time, each in a thread.

    ``limit_s`` is the deadline of a call, until it gets its turn included. Footers stay known
    whatever becomes of a call. No I/O when it is made.
    """

    def __init__(self, objects: Objects, folder: str, *, limit_s: float) -> None:
        self._objects = objects
        self._folder = folder
        self._limit_s = limit_s
        self._footers = Footers()
        self._turns = CallTurns()
        self._lock, self._running = threading.Lock(), 0
        # What the call that ended last has read of it.
        self._log = FileLog(objects, folder)

    @property
    def log(self) -> FileLog:
        """The log: in a thread, that of its call."""
        return _bound.get() or self._log

    async def read(
        self,
        work: Callable[[FileReader], T],
        *,
        action: str = "read",
        timeout_s: float | None = None,
    ) -> T:
        """Read in a thread. Errors: ArchiveUnavailable; ArchiveFileMissing."""
        return await self.run(action, lambda: work(self._reading()), timeout_s=timeout_s)

    async def run(self, action: str, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a call in a thread. Errors: ArchiveUnavailable; ArchiveFileMissing."""
        limit_s = timeout_s or self._limit_s
        call = ArchiveCall(limit_s)
        try:
            async with timeout(limit_s), self._turns:
                if self._running >= _MOST_THREADS:
                    # A folder that says nothing keeps each of them.
                    raise ArchiveUnavailable(action, "earlier calls have not ended")
                log = self._log.for_call(call.may_continue)
                try:
                    found = await in_thread(partial(self._attempts, log, action, work))
                    has_answered()
                    return found
                finally:
                    self._log.learn(log)
        except TimeoutError:
            raise ArchiveUnavailable(action, f"no answer in {limit_s:g} s") from None
        finally:
            # A thread that still runs is left alone.
            call.over = True

    def prepare(self) -> None:
        """Write the first entry of the log, and the archive's id, unless they are there."""
        self.log.prepare()
        keep_identity(self.log)

    def identify(self) -> str | None:
        """Return the archive's id, or None. It makes nothing."""
        return identify(self.log)

    def commit(self, work: Callable[[FileReader], FileChanges], *, delete: bool = False) -> None:
        """Work out changes and commit them, until no other process comes between."""
        writing = FileWriting(self.log)
        while True:
            reader = self._reading()
            changes = work(reader)
            made = writing.write(reader, changes)
            if not changes or self.log.commit(changes.entry(made), reader.named):
                break
        if delete:
            delete_files(self.log, self.log.files().removed)
            self.clean()

    def compact(self, few: int) -> int:
        """Make few files of many; return how many there are fewer. Delete what does not count."""
        fewer = compact(self.log, self._reading().footers, few=few)
        self.clean()
        return fewer

    def clean(self) -> None:
        """Delete what does not count and is old enough."""
        clean(self.log, grace=GRACE)

    async def aclose(self) -> None:
        """Forget what was read, once the calls that run have ended."""
        async with self._turns.all():
            self._log, self._footers = FileLog(self._objects, self._folder), Footers()

    def _reading(self) -> FileReader:
        return FileReader(self.log, self._footers, without=_without.get())

    def _attempts(self, log: FileLog, action: str, work: Callable[[], T]) -> T:
        with self._lock:
            self._running += 1
        try:
            return self._repeated(log, action, work)
        finally:
            with self._lock:
                self._running -= 1

    def _repeated(self, log: FileLog, action: str, work: Callable[[], T]) -> T:
        _bound.set(log)
        known = ""
        # One more, without the files that are gone.
        for attempt in range(_ATTEMPTS + 1):
            try:
                return work()
            except FileGone as gone:
                if gone.file == known:
                    # A log that was read since it was gone names it still.
                    names = overlooked.get()
                    if names is None:
                        raise ArchiveFileMissing(action, known) from None
                    names.add(known)
                    _without.set(self.log.missing())
                    continue
                # Another process has replaced it since the log was read.
                self.log.forget_files()
                known = gone.file
                if attempt >= _ATTEMPTS - 1:
                    break
            except ArchiveUnavailable:
                raise
            except (ValueError, LookupError, OverflowError, TypeError, pa.ArrowException) as error:
                # Its text may quote what was to be written.
                refused = action == "write"
                raise ArchiveUnavailable(action, type(error).__name__, refused=refused) from None
            except self._objects.problems as error:
                raise ArchiveUnavailable(action, type(error).__name__) from None
        raise ArchiveUnavailable(action, "its files change meanwhile")
