"""A proxy that knows the commands that pass it: a fault at the n-th of those that are meant.

    async with CommandProxy(url) as proxy, store_at(proxy.url) as store:
        with proxy.cut_after("save_record"):
            await store.save_memory_state("m", {})

A command is meant by its verb, or by the name of the script that it runs. ``holding`` also asks for
a text in one of its words, ``at`` for the first that the fault meets, ``times`` for how many (None:
each). Commands are counted on all connections, from the beginning of the block. At the end of the
block each fault must have fired as often as it says.

One at a time, so nothing else is lost: what was sent before is answered first, and what was sent
behind it waits. Calls that share a command are one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha1
from typing import Any

from redis_state.scripts import SCRIPTS
from redis_state.transport.wire.resp import unbulk_command
from tests.support.servers.faults import Proxy, Readable

# What a server answers while a script of another client does not end: it executes nothing.
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
# And while it has no room for a write.
OOM = "OOM command not allowed when used memory > 'maxmemory'."

_NAMES = {script.digest: script.name for script in SCRIPTS.values()}
# The replies behind them are no longer one to each command.
_STREAMING = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR"})
_LENGTHS, _COUNTS, _PAIRS = b"$=!", b"*~>", b"%|"

# What is to become of a command: whether it is handed on.
_Act = Callable[["_Link"], Awaitable[bool]]


class Fault:
    """What happens to some commands: how many were ``seen``, and how often it has ``fired``."""

    def __init__(self, name: str, act: _Act, *, at: int, times: int | None, holding: str) -> None:
        self._name, self._holding = name, holding.encode()
        self._first, self._times = at, times
        self._act = act
        self._failed: Exception | None = None
        self.seen: int = 0
        self.fired: int = 0

    def meets(self, name: str, words: list[bytes]) -> bool:
        """Count a command if it is meant; return whether this one meets the fault."""
        if name != self._name or not any(self._holding in word for word in words):
            return False
        self.seen += 1
        since = self.seen - self._first
        return since >= 0 and (self._times is None or since < self._times)

    async def fire(self, link: _Link) -> bool:
        """Do it; return whether the command is handed on."""
        self.fired += 1
        try:
            return await self._act(link)
        except ConnectionAbortedError:
            raise
        except Exception as error:  # noqa: BLE001 - the test gets it from `check`
            self._failed = error
            raise ConnectionAbortedError from None

    def check(self) -> None:
        """Fail unless it has fired as often as it was to."""
        if self._failed is not None:
            raise self._failed
        met = f"{self._name} was met {self.fired} times of {self._times or 'any'}"
        enough = self.fired > 0 if self._times is None else self.fired == self._times
        assert enough, f"{met}, and seen {self.seen} times"


class CommandProxy(Proxy):
    """A `Proxy` in front of a Redis, with faults at single commands besides."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._faults: list[Fault] = []
        self._links: dict[asyncio.StreamWriter, _Link] = {}

    def cut_before(
        self, name: str, *, at: int = 1, times: int | None = 1, holding: str = ""
    ) -> AbstractContextManager[Fault]:
        """Cut the connection instead of handing a command on: the server never hears of it."""

        async def act(link: _Link) -> bool:
            await link.rest()
            self.cuts += 1
            raise ConnectionAbortedError

        return self._armed(Fault(name, act, at=at, times=times, holding=holding))

    def cut_after(
        self, name: str, *, at: int = 1, times: int | None = 1, holding: str = ""
    ) -> AbstractContextManager[Fault]:
        """Cut the connection instead of handing a command's reply on: the server has done it."""

        async def act(link: _Link) -> bool:
            self.cuts += 1
            link.cut_at_reply()
            return True

        return self._armed(Fault(name, act, at=at, times=times, holding=holding))

    def answer(
        self, name: str, error: str = BUSY, *, at: int = 1, times: int | None = 1, holding: str = ""
    ) -> AbstractContextManager[Fault]:
        """Answer a command with an error, as a server does that does not execute it."""

        async def act(link: _Link) -> bool:
            await link.rest()
            link.client.write(f"-{error}\r\n".encode())
            return False

        return self._armed(Fault(name, act, at=at, times=times, holding=holding))

    def meanwhile(
        self,
        name: str,
        do: Callable[[], Awaitable[object]],
        *,
        at: int = 1,
        times: int | None = 1,
        holding: str = "",
    ) -> AbstractContextManager[Fault]:
        """Do something before a command is handed on, by another connection than its own.

        What that raises is raised at the end of the block.
        """

        async def act(_: _Link) -> bool:
            await do()
            return True

        return self._armed(Fault(name, act, at=at, times=times, holding=holding))

    def count(self, name: str, *, holding: str = "") -> AbstractContextManager[Fault]:
        """Count commands that are handed on like all others, as ``seen``."""

        async def act(_: _Link) -> bool:
            return True

        return self._armed(Fault(name, act, at=1, times=0, holding=holding))

    @contextmanager
    def _armed(self, fault: Fault) -> Generator[Fault]:
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)
        fault.check()

    async def pass_on(self, link: _Link, words: list[bytes]) -> bool:
        """Do what a command meets; return whether it is handed on."""
        name = _name_of(words)
        link.streams |= name in _STREAMING
        # Each counts it.
        met = [fault for fault in self._faults if fault.meets(name, words)]
        for fault in met:
            if not await fault.fire(link):
                return False
        return True

    async def _copy(
        self,
        reader: Readable,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        link = self._links.setdefault(client, _Link(client))
        through = _Replies(reader, link) if answers else _Commands(reader, link, self)
        await super()._copy(through, writer, client, answers=answers)


class _Link:
    """A client's connection: which of its commands the server has not answered."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client: asyncio.StreamWriter = client
        # Its replies are not one to each command any more.
        self.streams: bool = False
        # Of each command whether its reply ends the connection.
        self._unanswered: deque[bool] = deque()
        self._resting = asyncio.Event()
        self._resting.set()
        self._cuts = False

    def cut_at_reply(self) -> None:
        """End with the reply to the command that is handed on next."""
        self._cuts = True

    def handed_on(self) -> None:
        """Take note of a command on its way."""
        if not self.streams:
            self._unanswered.append(self._cuts)
            self._resting.clear()

    async def go_on(self) -> None:
        """Let no command pass behind one whose reply ends the connection."""
        if self._cuts:
            await self.rest()
            raise ConnectionAbortedError

    def answered(self) -> None:
        """Take note of a reply. Errors: ConnectionAbortedError if it ends the connection."""
        if self._unanswered and self._unanswered.popleft():
            raise ConnectionAbortedError

    def note_rest(self) -> None:
        """Take note that what came is handed on."""
        if not self._unanswered:
            self._resting.set()

    def end(self) -> None:
        """Let nobody wait any more."""
        self._unanswered.clear()
        self._resting.set()

    async def rest(self) -> None:
        """Wait until each command's reply is handed on, or the connection has ended."""
        await self._resting.wait()


class _Commands:
    """A client's commands, one a read, as far as they are handed on."""

    def __init__(self, reader: Readable, link: _Link, proxy: CommandProxy) -> None:
        self._frames = _Frames(reader)
        self._link = link
        self._proxy = proxy

    async def read(self, _: int, /) -> bytes:
        """Return the next one; nothing at the end."""
        await self._link.go_on()
        while command := await self._frames.next():
            if await self._proxy.pass_on(self._link, unbulk_command(command)):
                self._link.handed_on()
                return command
        return b""


class _Replies:
    """A server's replies, one a read, as far as they are handed on."""

    def __init__(self, reader: Readable, link: _Link) -> None:
        self._frames = _Frames(reader)
        self._link = link

    async def read(self, _: int, /) -> bytes:
        """Return the next one; nothing at the end."""
        link, passes = self._link, False
        link.note_rest()
        try:
            if reply := await self._frames.next():
                link.answered()
                passes = True
        finally:
            if not passes:
                link.end()
        return reply


class _Frames:
    """What is read, a value of the protocol at a time."""

    def __init__(self, reader: Readable) -> None:
        self._reader = reader
        self._data = bytearray()

    async def next(self) -> bytes:
        """Return the next value as it came; nothing at the end."""
        while (end := _end_of(self._data, 0)) < 0:
            more = await self._reader.read(1 << 16)
            if not more:
                return b""
            self._data += more
        found = bytes(self._data[:end])
        del self._data[:end]
        return found


def _end_of(data: bytearray, start: int) -> int:
    """Return where the value that begins here ends; -1 if that has not come."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return -1
    kind, at = data[start : start + 1], line + 2
    if kind in _LENGTHS:
        length = int(data[start + 1 : line])
        at += length + 2 if length >= 0 else 0
        return at if at <= len(data) else -1
    if kind in _COUNTS or kind in _PAIRS:
        count = int(data[start + 1 : line])
        for _ in range(2 * count if kind in _PAIRS else count):
            at = _end_of(data, at)
            if at < 0:
                return -1
    return at


def _name_of(words: list[bytes]) -> str:
    """Return the name of the script that a command runs, or its verb."""
    verb = words[0].decode().upper()
    if verb == "EVAL":
        return _NAMES.get(sha1(words[1], usedforsecurity=False).hexdigest(), verb)
    return _NAMES.get(words[1].decode(), verb) if verb == "EVALSHA" else verb
