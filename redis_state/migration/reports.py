"""The reports of a migration: how far it is, what it has copied, what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

# Of many differences these are named, the others counted.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class PassProgress:
    """How far a pass is: keys looked at, and bytes written."""

    keys: int
    bytes: int


Listener: TypeAlias = Callable[[PassProgress], None]


@dataclass(slots=True)
class Named:
    """A number of keys, the first of them by name."""

    count: int = 0
    first: list[str] = field(default_factory=list[str])

    def add(self, name: str) -> None:
        """Count a key."""
        self.count += 1
        if len(self.first) < _NAMED:
            self.first.append(name)


@dataclass(slots=True)
class Copied:
    """What a pass has done.

    ``conflicts`` were written at the target by another process; they are left as they are.
    ``strange`` are of a type that the library does not write; they are left out.
    """

    same: int = 0
    copied: int = 0
    dropped: int = 0
    bytes: int = 0
    conflicts: Named = field(default_factory=Named)
    strange: Named = field(default_factory=Named)

    @property
    def complete(self) -> bool:
        """Whether all keys are copied."""
        return not (self.conflicts.count or self.strange.count)


@dataclass(slots=True)
class Checked:
    """What a comparison has found.

    ``missing`` are at the source only, ``extra`` at the target only; ``different`` have another
    content, ``lifetimes`` another lifetime. ``stale`` of the extra ones were copied, and are gone
    from the source since.
    """

    same: int = 0
    missing: Named = field(default_factory=Named)
    extra: Named = field(default_factory=Named)
    different: Named = field(default_factory=Named)
    lifetimes: Named = field(default_factory=Named)
    stale: int = 0
    finished: bool = False
    deleted: int = 0

    @property
    def equal(self) -> bool:
        """Whether both hold the same."""
        return self.has_all and not self.extra.count

    @property
    def has_all(self) -> bool:
        """Whether the target has all of the source alike, and no copy of what is gone from it."""
        found = (self.missing, self.different, self.lifetimes)
        return not any(each.count for each in found) and not self.stale
