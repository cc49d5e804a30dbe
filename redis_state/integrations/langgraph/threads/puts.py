"""What is put into a thread during a pruning."""

from __future__ import annotations

from typing import NamedTuple


class PutsSeen(NamedTuple):
    """How much of a list of puts is known: its id, its length, and its last entry."""

    watch: bytes
    length: int
    last: bytes


class Dropped(NamedTuple):
    """What a step found that was put since the one before, and what it kept for that."""

    seen: PutsSeen
    puts: list[bytes]
    parents: list[bytes]
    kept: list[bytes]
    needed: list[bytes]
