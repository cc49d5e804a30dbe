"""A Lua script as the sender knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Input(NamedTuple):
    """A key or an argument of a script: its name, the kind of an argument, whether it is a list.

    ``type`` is what a key holds, as the server names it; empty if that may be anything.
    """

    name: str
    kind: str = ""
    is_list: bool = False
    type: str = ""


# Compared by identity: neighbours in a batch are, and what is packed is remembered by its script.
@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One atomic operation: its name, its full text and the digest the server knows it by.

    One that runs ``each`` of several calls takes the keys of all, then the arguments of all, and
    gives a list of their replies. All have as many of both.

    One that runs ``once`` keeps its reply in its second key, for a repetition of the call. Run
    twice in a row as two calls, an ``idempotent`` one of them leaves what it leaves once.

    A ``lasting`` one is sent although its caller was cancelled: hosts save, and then cancel the
    task that waits. Others are not sent: a token must not be consumed for a caller that has left.

    What a ``reading`` one writes, as a use or a lifetime, is no promise: no replica confirms it.
    """

    name: str
    text: str
    digest: str
    each: bool = False
    once: bool = False
    idempotent: bool = False
    lasting: bool = False
    reading: bool = False
    keys: tuple[Input, ...] = ()
    arguments: tuple[Input, ...] = ()

    def types_of(self, keys: Sequence[str]) -> dict[str, str]:
        """Return what the keys of one call hold, as the script declares it.

        A key that stands for one which the call does not have is left out.
        """
        declared = list(self.keys)
        if self.once:
            declared.insert(1, Input("", type="string"))
        if declared and declared[-1].is_list:
            declared += declared[-1:] * (len(keys) - len(declared))
        found: dict[str, str] = {}
        for key, given in zip(keys, declared, strict=False):
            found.setdefault(key, given.type)
        return {key: kind for key, kind in found.items() if kind}
