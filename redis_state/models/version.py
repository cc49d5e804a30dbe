"""A version that is never mistaken for another of the same number."""

from __future__ import annotations

from typing import Any, Self


class Version(int):
    """A document's version: its number, and the id of the write that made it.

    The server gives a number again after a rollback, and after a document was deleted. So a save
    that expects a `Version` compares number and write, and two versions are equal if both are.
    Elsewhere it is the number; a plain int is compared as the number alone.
    """

    write: str

    def __new__(cls, number: int, write: str = "") -> Self:
        """Make a version. One without a ``write`` stands for a document that is absent."""
        version = super().__new__(cls, number)
        version.write = write
        return version

    def __eq__(self, other: object) -> bool:
        """Compare number and write with a version, the number with anything else."""
        same = int.__eq__(self, other) if isinstance(other, int) else NotImplemented
        return same and self.write == other.write if isinstance(other, Version) else same

    def __ne__(self, other: object) -> bool:
        """Compare likewise."""
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __hash__(self) -> int:
        """Hash the number, which equal versions share."""
        return int.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the write in a pickle and in a copy."""
        return type(self), (int(self), self.write)
