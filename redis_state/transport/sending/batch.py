"""Calls, and the commands that a batch of them is written as.

Neighbours in a batch that call one script with as many keys and arguments share a command. The
script must run `each` of several calls, and the server must take keys of several sessions together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from redis_state.transport.connections.address import Endpoint
from redis_state.transport.connections.protocol import ProtocolBroken
from redis_state.transport.sending.future import EagerFuture, Waiter
from redis_state.transport.wire.reply_errors import Refusal
from redis_state.transport.wire.resp import (
    head_of_digest,
    head_of_text,
    pack,
    unbulk,
    unbulk_command,
)
from redis_state.transport.wire.script import Script

# A script, how many keys and arguments it is called with, and a number for a call that must have
# a command of its own; None if it may share one.
Form: TypeAlias = tuple[Script | None, int, int, int | None]
PLAIN: Form = (None, 0, 0, None)
# A login goes alone: nothing is in flight before it, and nothing is sent behind it until its reply.
# Redis 8.2 does not answer an AUTH that it refuses, unless it is the first command of a read. The
# replies behind it would be taken for those of other calls.
LOGIN: Form = (None, 0, 0, -1)
# A question that is asked with EVAL and changes nothing.
PROBE: Form = (None, 0, 0, -2)

# Enough that a write costs little, and few enough that the server works on one batch while the next
# is being made: with all of 64 callers in one write each side would wait for the other.
BATCH_COMMANDS = 24
BATCH_BYTES = 1 << 18
# What is larger may still be on its way when others are given up. A chunk of 256 KB, with what is
# written around it, is not: its call is repeated in time.
LARGE_BYTES = BATCH_BYTES + (1 << 14)
# What is larger has a command of its own: it gains nothing, and the others would wait for it.
SHARED_ARGUMENTS = 100
SHARED_BYTES = 1 << 13
# Of a command, with its keys. Serverless offers refuse more than 3,999.
COMMAND_ARGUMENTS = 3_900

# Leads a call that a node has sent on to the node that takes its slot over.
ASKING = pack(("ASKING",))

_form_of = attrgetter("form")


class Redirect(NamedTuple):
    """Why a node of a cluster did not execute a call, and where it goes: None if that is open."""

    code: str
    endpoint: Endpoint | None


class Call(EagerFuture):
    """A command on its way, and the future of its reply."""

    __slots__ = (
        "arguments",
        "deadline",
        "form",
        "keys",
        "lasting",
        "lost",
        "number",
        "redirect",
        "repeatable",
        "sent",
        "slot",
        "timeout",
    )

    number: int
    # Packed: a script's keys and arguments, or a whole command.
    keys: bytes
    arguments: bytes
    # Neighbours of equal forms share a command, if it is a script's.
    form: Form
    deadline: float
    timeout: float
    repeatable: bool
    lasting: bool
    # It may have happened: a reply is outstanding, or one was lost with its connection.
    sent: bool
    lost: bool
    # In a cluster: the slot of its keys, -1 without one, and where a node has sent it.
    slot: int
    redirect: Redirect | None
    waiter: Waiter | None

    def __init__(  # noqa: PLR0917 - all that a call is
        self,
        loop: asyncio.AbstractEventLoop,
        form: Form,
        keys: bytes,
        arguments: bytes,
        repeatable: bool,  # noqa: FBT001
        lasting: bool,  # noqa: FBT001
        timeout_s: float,
    ) -> None:
        super().__init__(loop=loop)
        self.form, self.keys, self.arguments = form, keys, arguments
        self.repeatable, self.lasting = repeatable, lasting
        self.sent = self.lost = False
        self.slot, self.redirect, self.waiter = -1, None, None
        self.timeout = timeout_s
        self.deadline = monotonic() + timeout_s

    def wanted(self) -> bool:
        """Return whether it has no outcome yet, and is waited for or lasts all the same."""
        return not self.done() or (self.lasting and self.cancelled())

    def names(self) -> list[bytes]:
        """Return the keys that it is about. The key of its own reply is none of them."""
        script, count, _, _ = self.form
        if script is None:
            return unbulk_command(self.arguments)[1:2]
        keys = unbulk(self.keys, count)
        return keys[:1] + keys[2:] if script.idempotent else keys

    def fail(self, error: Exception) -> None:
        """Give it this outcome, if it has none."""
        if not self.done():
            self.set_exception(error)
            # Unawaited calls are part of the contract: nobody may be there to look.
            self.exception()

    def lead_by_asking(self, redirect: Redirect) -> None:
        """Mark it for a node that is still taking its slot over."""
        self.redirect = redirect
        # In no command with a neighbour: it leads one call.
        self.form = (*self.form[:3], self.number)

    def stand_in(self) -> Call:
        """Make a call in place of this one, whose caller may leave. It gets the other's outcome."""
        made = Call(
            self.get_loop(),
            self.form,
            self.keys,
            self.arguments,
            self.repeatable,
            False,  # noqa: FBT003 - nobody can cancel it
            self.timeout,
        )
        made.deadline, made.number, made.slot = self.deadline, self.number, self.slot
        made.sent, made.lost = self.sent, self.lost
        made.add_late_callback(self._end_alike)
        return made

    def _end_alike(self, other: asyncio.Future[Any]) -> None:
        error = other.exception()
        if isinstance(error, Exception):
            self.fail(error)
        elif not self.done():
            self.set_result(other.result())

    def patient(self) -> bool:
        """Return whether it needs its connection until its deadline.

        What may not be repeated does; what is large may still be on its way to the server.
        """
        small = len(self.arguments) <= LARGE_BYTES
        return not (self.done() or (self.repeatable and small))


def next_batch(*sources: deque[Call], most: int = BATCH_COMMANDS) -> list[Call]:
    """Take the next ``most`` calls that are still wanted, those of the first source first."""
    batch: list[Call] = []
    size = 0
    for source in sources:
        while source and len(batch) < most and size < BATCH_BYTES:
            if batch and (source[0].form is LOGIN or batch[0].form is LOGIN):
                return batch
            call = source.popleft()
            if call.wanted():
                call.sent = True
                batch.append(call)
                size += len(call.keys) + len(call.arguments)
    return batch


def packed(batch: list[Call], loaded: set[str], *, sharing: bool) -> tuple[list[bytes], list[int]]:
    """Write the commands of a batch; return them, and how many calls each reply will answer.

    ``loaded`` has the digests of the scripts whose text this connection has sent. A call that was
    redirected here is led by a command whose reply answers none.
    """
    parts: list[bytes] = []
    shares: list[int] = []
    for form, neighbours in groupby(batch, _form_of):
        calls = list(neighbours)
        script, keys, arguments, _ = form
        if calls[0].redirect is not None:
            parts.append(ASKING)
            shares.append(0)
        if script is None:
            shares.extend([1] * len(calls))
            parts += [call.arguments for call in calls]
            continue
        if len(calls) == 1:
            # On a cluster nearly every call: neighbours seldom have a slot in common.
            shares.append(1)
            parts += (head_of(script, keys, arguments, loaded), calls[0].keys, calls[0].arguments)
            continue
        share = max(1, COMMAND_ARGUMENTS // (keys + arguments)) if sharing else 1
        for first in range(0, len(calls), share):
            together = calls[first : first + share]
            count = len(together)
            shares.append(count)
            parts.append(head_of(script, keys * count, arguments * count, loaded))
            parts += [call.keys for call in together]
            parts += [call.arguments for call in together]
    return parts, shares


def head_of(script: Script, keys: int, arguments: int, loaded: set[str]) -> bytes:
    """Return the head of a script's call: by digest once this connection has sent its text.

    By the digest alone the first call after a restart would be refused, and be repeated after
    calls that were made later.
    """
    if script.digest in loaded:
        return head_of_digest(script.digest, keys, arguments)
    loaded.add(script.digest)
    return head_of_text(script, keys, arguments)


def check_replies(replies: list[Any], shares: deque[int]) -> None:
    """Raise ProtocolBroken if there are more replies, or other ones, than calls wait for."""
    if len(replies) > len(shares):
        raise ProtocolBroken(f"{len(replies)} replies to {len(shares)} commands")
    for share, reply in zip(shares, replies, strict=False):
        if share <= 1 or isinstance(reply, Refusal):
            continue
        if reply.__class__ is not list or len(reply) != share:
            raise ProtocolBroken(f"no list of {share} replies to {share} calls")


def verb_of(packed: bytes) -> str:
    """Return a packed command's verb."""
    return packed.split(b"\r\n", 3)[2].decode(errors="replace")
