"""A Lua script as the sender knows it."""

from __future__ import annotations

from dataclasses import dataclass


# Compared by identity: neighbours in a batch are, and what is packed is remembered by its script.
@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One atomic operation: its name, its full text and the digest the server knows it by.

    One that runs ``each`` of several calls takes the keys of all, then the arguments of all, and
    gives a list of their replies. All have as many of both.

    An ``idempotent`` one keeps its reply in its second key, for a repetition of the call. Run twice
    in a row as two calls it leaves what it leaves once.
    """

    name: str
    text: str
    digest: str
    each: bool
    idempotent: bool
