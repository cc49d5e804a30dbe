"""The log of an archive's files: which of them count, decided by the next number in turn.

Each entry adds files and removes others, in one step: it is the object of the next number, which
can be created once. So of writers that come together one is first, and the others look again.
Every 64 entries one object names all files, so nobody reads the log from its beginning.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from redis_state.archive.parquet.files.ahead import ahead
from redis_state.archive.parquet.files.data_files import REMEMBERED, DataFile, Files
from redis_state.archive.parquet.files.objects import Objects
from redis_state.errors import ArchiveUnavailable

_WHOLE_EVERY = 64
_ATTEMPTS = 5
_NAME = re.compile(r"/(\d{12})(\.whole)?\.json\Z")


class FileGone(Exception):
    """A file that the log names is not there: another process has replaced it, or it was lost.

    ``file`` is its name below the namespace's folder.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file: str = file


@dataclass(frozen=True, slots=True)
class LogChange:
    """What an entry says: files that count from now on, and names of those that do not any more.

    ``erased`` has digests of sessions that were erased, each with the time, in us. ``kept_from``
    has the times, in us, from which on rows of a kind are kept, as the last retention had it.
    """

    add: Sequence[DataFile] = ()
    remove: Iterable[str] = ()
    erased: Mapping[str, int] = field(default_factory=dict[str, int])
    kept_from: Mapping[str, int] = field(default_factory=dict[str, int])


class FileLog:
    """The log of one namespace's files, as one call at a time reads and writes it.

    ``may_continue`` is called before a file is read and before an entry is written.
    """

    def __init__(
        self, objects: Objects, folder: str, *, may_continue: Callable[[], bool] = lambda: True
    ) -> None:
        self.objects = objects
        self.folder = folder
        self.may_continue = may_continue
        # The files as they were last read, and whether this process has ever read them.
        self.known: Files | None = None
        self.was_there: bool = False
        # Whether it has dropped what it knew: the store went back, or files are missing.
        self.again: bool = False

    def for_call(self, may_continue: Callable[[], bool]) -> FileLog:
        """Return the log for a call beside others. It knows what this one does."""
        log = FileLog(self.objects, self.folder, may_continue=may_continue)
        log.learn(self)
        return log

    def learn(self, other: FileLog) -> None:
        """Know what another one has read, unless this one has read more.

        Of calls beside each other the one that began first may end last. One that has read the log
        again is right: the store may have gone back.
        """
        known = other.known
        later = known is not None and (self.known is None or known.n >= self.known.n)
        if later or other.again:
            self.known = known
        self.was_there |= other.was_there

    def prepare(self) -> None:
        """Write the first entry, unless there is one.

        Errors: ArchiveUnavailable if the archive was known to this process and has gone: what is
        made in its place would be hidden once it is back. The same if the store replaces
        objects that it was to create only.
        """
        if self.is_there():
            return
        if self.was_there:
            raise ArchiveUnavailable("prepare", "its files have gone")
        body = _entry(0, LogChange())
        if self.objects.create(self._name(0), body) and self.objects.create(self._name(0), body):
            raise ArchiveUnavailable("prepare", "the store does not refuse to replace an object")

    def is_there(self) -> bool:
        """Return whether there is an entry."""
        return bool(self._listed(""))

    def files(self) -> Files:
        """Return the files that count now. Two reads, and one for each new entry."""
        for _ in range(_ATTEMPTS):
            files = self.known
            try:
                self.known = self._begin() if files is None else self._continued(files)
            except FileGone:
                self.known = None
            if self.known is not None:
                self.was_there = True
                return self.known
            self.again = True
        raise ArchiveUnavailable("read", "its log is not whole")

    def missing(self) -> frozenset[str]:
        """Return the data files that count and are not there. It lists all objects."""
        # Listed first: what is added later is no missing file.
        kinds = {file.kind for file in self.files().by_name.values()}
        listed = [each for kind in kinds for each in self.objects.names(f"{self.folder}/{kind}")]
        there = {each.name.removeprefix(f"{self.folder}/") for each in listed}
        # What another process has replaced meanwhile does not count any more.
        before = self.files().by_name.keys() - there
        return frozenset(name for name in before if not self._has(name))

    def _has(self, name: str) -> bool:
        opened = self.objects.open(f"{self.folder}/{name}")
        if opened is not None:
            opened.close()
        return opened is not None

    def forget_files(self) -> None:
        """Read the log from its beginning in the next call."""
        self.known = None
        self.again = True

    def commit(self, change: LogChange, files: Files) -> bool:
        """Write the entry behind ``files``, of which the change was worked out.

        Return whether it was this one. All of it counts, or nothing.
        """
        if not self.may_continue():
            raise ArchiveUnavailable("write", "its time is over")
        body = _entry(files.n + 1, change)
        name = self._name(files.n + 1)
        if not self.objects.create(name, body) and self.objects.get(name) != body:
            return False
        if not self._is_behind(files):
            # This one may stand where one was that others have read and deleted, the oldest first.
            # Or the store went back: what was worked out of other files must not count. If others
            # have built on it, it has counted: without it they would stay behind a gap.
            built = (self._name(files.n + 1, whole=True), self._name(files.n + 2))
            if all(self.objects.get(each) is None for each in built):
                self.objects.delete([name])
            self.forget_files()
            raise ArchiveUnavailable("write", "its log went on meanwhile")
        following = files.copy()
        _apply(following, body)
        if following.n % _WHOLE_EVERY == 0:
            self.write_whole(following)
        self.known = following
        return True

    def write_whole(self, files: Files) -> None:
        """Write one object that names all files, so that the entries before it can go."""
        since = datetime.now(UTC) - REMEMBERED
        removed = [name for name, at in files.removed.items() if at >= since]
        named = list(files.by_name.values())
        whole = _entry(files.n, LogChange(named, removed, files.erased, files.kept_from))
        self.objects.create(self._name(files.n, whole=True), whole)

    def now(self) -> datetime:
        """Return the time of the store. Its objects have it, and clocks of processes differ."""
        folder = f"{self.folder}/log"
        name = f"{folder}/.now.{secrets.token_hex(8)}"
        self.objects.create(name, b"{}")
        found = [each.at for each in self.objects.names(folder) if each.name == name]
        self.objects.delete([name])
        if not found:
            raise ArchiveUnavailable("write", "what it has written is not there")
        return found[0]

    def clean(self, before: datetime) -> None:
        """Delete the entries that nobody reads, the oldest first: behind them one names all."""
        listed = self._listed("")
        numbers = _numbers(listed)
        newest = max((n for n, is_whole in numbers if is_whole), default=0)
        for each, (n, _) in zip(listed, numbers, strict=True):
            if n >= newest or each.at >= before:
                break
            self.objects.delete([each.name])
        found = self.objects.names(f"{self.folder}/log")
        # What a crash left of one that was to be written.
        over = [each for each in found if not _NAME.search(each.name) and each.at < before]
        self.objects.delete(each.name for each in over)

    def _begin(self) -> Files | None:
        listed = self._listed("")
        if not listed:
            raise ArchiveUnavailable("read", "it is not there, or no worker has prepared it yet")
        found = _numbers(listed)
        whole = max((n for n, is_whole in found if is_whole), default=None)
        files = Files(-1)
        if whole is not None:
            _apply(files, self._read(self._name(whole, whole=True)))
            files.entry = None
        followed = self._follow(files, [n for n, is_whole in found if not is_whole])
        # A listing may be behind: what follows is read by its name.
        return None if followed is None else self._continued(followed)

    def _continued(self, files: Files) -> Files | None:
        """Read the entries that follow, one by one: most often there is none.

        None if there are many: the object that names all files is nearer.
        """
        following = files
        while (body := self.objects.get(self._name(following.n + 1))) is not None:
            if following.n - files.n >= _WHOLE_EVERY:
                return None
            if following is files:
                following = files.copy()
            _apply(following, body)
        return following if self._is_behind(following) else None

    def _is_behind(self, files: Files) -> bool:
        """Return whether the last entry of ``files`` is there.

        It is gone, or another one, if the store went back; gone if the log was cleaned.
        """
        body = self.objects.get(self._name(files.n))
        if body is None:
            return False
        if files.entry is None:
            # Of an object that names all files: this is the entry that it was written behind.
            files.entry = _digest(body)
        return files.entry == _digest(body)

    def _follow(self, files: Files, numbers: Sequence[int]) -> Files | None:
        following = [n for n in numbers if n > files.n]
        if following != list(range(files.n + 1, files.n + 1 + len(following))):
            return None
        for _, body in ahead(self._read, [self._name(n) for n in following]):
            _apply(files, body)
        return files

    def _read(self, name: str) -> bytes:
        body = self.objects.get(name)
        if body is None:
            raise FileGone(name)
        return body

    def _listed(self, after: str) -> list[Any]:
        found = self.objects.names(f"{self.folder}/log", after=after)
        return [each for each in found if _NAME.search(each.name)]

    def _name(self, n: int, *, whole: bool = False) -> str:
        return f"{self.folder}/log/{n:012d}{'.whole' if whole else ''}.json"


def _numbers(listed: Iterable[Any]) -> list[tuple[int, bool]]:
    found = [_NAME.search(each.name) for each in listed]
    return [(int(each.group(1)), each.group(2) is not None) for each in found if each]


def _apply(files: Files, body: bytes) -> None:
    try:
        files.apply(json.loads(body))
        files.entry = _digest(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        problem = f"entry {files.n + 1} of its log, or a later one, is none"
        raise ArchiveUnavailable("read", problem) from None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _entry(n: int, change: LogChange) -> bytes:
    # It names its writer, so that one whose reply was lost knows its own.
    document = {
        "n": n,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": secrets.token_hex(8),
        "add": [asdict(each) for each in change.add],
        "remove": sorted(change.remove),
        "erased": dict(change.erased),
        "kept_from": dict(change.kept_from),
    }
    return json.dumps(document, separators=(",", ":")).encode()
