"""What callers use: commands and scripts become calls, which a subclass puts on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from redis_state.errors import CallerError
from redis_state.transport.sending.batch import PLAIN, SHARED_ARGUMENTS, SHARED_BYTES, Call, Form
from redis_state.transport.wire.resp import Argument, PackedCommand, PreparedScript, bulks, pack


class CallSender:
    """Make calls of the running event loop, numbered in the order in which they are made."""

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count() if numbers is None else numbers
        # Whether neighbours share commands; None until the server is checked.
        self._sharing: bool | None = None

    def send(
        self,
        *command: Argument,
        repeatable: bool,
        lasting: bool = False,
        timeout_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a command at once and return its reply's future. Does not wait.

        ``repeatable`` promises that doing the command twice is doing it once, so that it may be
        sent again when a reply is lost. A ``lasting`` one is sent although its future is cancelled.
        A connection without any reply for a third of a call's time is given up. If a call in
        flight is not repeatable, or is large, it is given up at the first deadline.

        Errors, on the future: BackendUnavailable if the deadline passes unsent, OutcomeUnknown if
        it passes later, AuthenticationFailed, StoreFull, CommandRefused; CallerError for what
        cannot be sent; ConfigError if there is no server to start, or if the first one found does
        not promise what the settings demand. What another try cannot help is raised at once, such
        as a wrong password.
        """
        try:
            packed = pack(command)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to know
            return self._unsendable(command[0], error)
        key = command[1] if len(command) > 1 else ""
        return self._put(PLAIN, b"", packed, repeatable, lasting, timeout_s, key)

    def ask(self, question: PackedCommand) -> asyncio.Future[Any]:
        """Queue a command that reads, as `send` does."""
        key = question.command[1]
        return self._put(PLAIN, b"", question.packed, True, False, None, key)  # noqa: FBT003

    def run(
        self,
        prepared: PreparedScript,
        more: tuple[Argument, ...],
        *,
        repeatable: bool = True,
        lasting: bool = False,
        timeout_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """Queue the call of a script, with ``more`` arguments, as `send` does a command.

        Its text is sent when needed.
        """
        script, keys, arguments, packed_keys, packed_arguments = prepared
        if script.each and self._sharing is None:
            self._ask_sharing(keys[0])
        try:
            packed = packed_arguments + bulks(more)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to know
            return self._unsendable(script.name, error)
        count = len(arguments) + len(more)
        small = count <= SHARED_ARGUMENTS and len(packed) <= SHARED_BYTES
        alone = None if script.each and small else next(self._numbers)
        form = (script, len(keys), count, alone)
        return self._put(form, packed_keys, packed, repeatable, lasting, timeout_s, keys[0])

    def unhurried(self, put: Callable[[], asyncio.Future[Any]]) -> asyncio.Future[Any]:
        """Call ``put``, which queues a call that nobody waits for: it may leave with what follows.

        Its place in the order of calls is the same.
        """
        return put()

    def hurry(self) -> None:
        """Write now what `unhurried` holds back: what follows may not come for long."""

    @property
    def batches(self) -> int:
        """Count the writes so far: calls that are sent together are one."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """Count the connections made so far."""
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Count the calls that have no outcome yet."""
        raise NotImplementedError

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every queued call has its outcome. Errors: TimeoutError."""
        raise NotImplementedError

    async def aclose(self, *, drain_s: float = 5.0) -> None:
        """Wait for queued calls for at most ``drain_s``, then disconnect. Safe to repeat."""
        raise NotImplementedError

    def _ask_sharing(self, key: str) -> None:
        """Find out whether neighbours share commands."""

    def _put(  # noqa: PLR0917 - all that a call is
        self,
        form: Form,
        keys: bytes,
        arguments: bytes,
        repeatable: bool,  # noqa: FBT001
        lasting: bool,  # noqa: FBT001
        timeout_s: float | None,
        key: Argument,
    ) -> Call:
        """Put a call on its way. ``key`` decides on the slot; "" for a call about none."""
        raise NotImplementedError

    def _unsendable(self, what: Argument, error: Exception) -> asyncio.Future[Any]:
        outcome: asyncio.Future[Any] = self._loop.create_future()
        outcome.set_exception(CallerError(f"{what!s} cannot be sent: {error}"))
        # Nobody may be there to look.
        outcome.exception()
        return outcome
