"""The data files that count after an entry of the log, and where each is looked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

# Of files that were written by one call, and not compacted yet.
NEW = "new"
# A file that was removed is named for so long.
REMEMBERED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that counts, by its name below the namespace's folder.

    ``least`` and ``most`` bound the times of its rows: births in microseconds, or milliseconds.
    ``ended`` and ``created`` bound the ends and the creations of its tasks. ``sessions`` are the
    digests of its sessions, each with the number and time of its last row that is not lost; None
    for a file of a bucket. ``classes`` says of each class of its records how many there are, and
    from when to when their states are, in microseconds; None for a file without records.
    """

    name: str
    kind: str
    month: str
    bucket: str
    rows: int
    bytes: int
    least: int
    most: int
    ended: tuple[int, int] | None
    created: tuple[int, int] | None
    sessions: Mapping[str, tuple[int, int] | None] | None
    classes: Mapping[str, tuple[int, int, int]] | None = None

    @property
    def places(self) -> list[tuple[str, str]]:
        """Return where it is looked for."""
        return [(self.kind, each) for each in (self.bucket, *(self.sessions or ()))]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> DataFile:
        """Make one of what an entry says."""
        made: dict[str, Any] = dict(given)
        for name in ("ended", "created"):
            if made[name] is not None:
                made[name] = tuple(made[name])
        if made["sessions"] is not None:
            made["sessions"] = {
                key: None if at is None else tuple(at) for key, at in made["sessions"].items()
            }
        if made.get("classes") is not None:
            made["classes"] = {name: tuple(held) for name, held in made["classes"].items()}
        return cls(**made)


@dataclass(slots=True)
class Files:
    """The files that count after entry ``n``. ``removed`` did until an hour ago at most.

    ``entry`` is the digest of that entry: a store that went back gives its number to another one.
    Several calls may have the same one, so what follows is applied to a `copy`.
    ``erased`` is that of all entries; of two times the later stands. Of ``kept_from`` the last one
    stands: a clock that was ahead must not hide what is kept.
    """

    n: int
    entry: bytes | None = None
    by_name: dict[str, DataFile] = field(default_factory=dict[str, DataFile])
    removed: dict[str, datetime] = field(default_factory=dict[str, datetime])
    erased: dict[str, int] = field(default_factory=dict[str, int])
    kept_from: dict[str, int] = field(default_factory=dict[str, int])
    # By kind and digest of a session, and by kind and bucket.
    places: dict[tuple[str, str], dict[str, DataFile]] = field(
        default_factory=dict[tuple[str, str], dict[str, DataFile]]
    )

    def copy(self) -> Files:
        """Return the same files, to apply entries to. Those of a place are shared until then."""
        since = datetime.now(UTC) - REMEMBERED
        return replace(
            self,
            by_name=dict(self.by_name),
            removed={name: at for name, at in self.removed.items() if at >= since},
            erased=dict(self.erased),
            kept_from=dict(self.kept_from),
            places=dict(self.places),
        )

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Make it what an entry says."""
        at = datetime.fromisoformat(entry["at"])
        own: dict[tuple[str, str], dict[str, DataFile]] = {}
        for name in entry["remove"]:
            self.removed[name] = at
            gone = self.by_name.pop(name, None)
            for place in gone.places if gone is not None else ():
                self._own(place, own).pop(name, None)
        for given in entry["add"]:
            file = DataFile.read(given)
            self.by_name[file.name] = file
            for place in file.places:
                self._own(place, own)[file.name] = file
        self.places |= own
        for place, files in own.items():
            if not files:
                del self.places[place]
        for name, us in entry["erased"].items():
            self.erased[name] = max(us, self.erased.get(name, us))
        self.kept_from |= entry["kept_from"]
        self.n = entry["n"]

    def _own(
        self, place: tuple[str, str], own: dict[tuple[str, str], dict[str, DataFile]]
    ) -> dict[str, DataFile]:
        """Return the files of a place, copied once for an entry."""
        if place not in own:
            own[place] = dict(self.places.get(place, ()))
        return own[place]

    def of(self, kind: str) -> list[DataFile]:
        """Return the files of a kind."""
        return [file for file in self.by_name.values() if file.kind == kind]

    def at(self, kind: str, place: str) -> list[DataFile]:
        """Return the files of a kind in a bucket, or the new ones that have a session's digest."""
        return list(self.places.get((kind, place), {}).values())

    def having(self, kind: str, digest: str) -> list[DataFile]:
        """Return the files that may have something of a session."""
        return [*self.at(kind, digest), *self.at(kind, digest[0])]

    def without(self, names: Collection[str]) -> Files:
        """Return all files but some."""
        left = Files(self.n, self.entry, erased=self.erased, kept_from=self.kept_from)
        for name, file in self.by_name.items():
            if name not in names:
                left.by_name[name] = file
                for place in file.places:
                    left.places.setdefault(place, {})[name] = file
        return left
