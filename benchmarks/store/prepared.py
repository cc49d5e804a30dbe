"""Commands of the store as bytes, sent without any Python to speak of.

Captured from the store itself, so that they are the very commands; only names change in them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.measure import Measured
from benchmarks.server import BenchServer
from redis_state import RedisStateStore
from redis_state.scripts import SCRIPTS
from redis_state.transport.wire.resp import Argument, PreparedScript

_BATCH = 64
_CONNECTIONS = 8


@dataclass(frozen=True)
class Captured:
    """One command, and how many lines its reply has."""

    parts: list[bytes]
    reply_lines: int

    def naming(self, names: dict[bytes, bytes]) -> bytes:
        """Write the command with other names, each as long as the one it stands for."""
        written = b"*%d\r\n" % len(self.parts)
        written += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in self.parts)
        for name, other in names.items():
            written = written.replace(name, other)
        return written


class _Listening:
    """Stands where the sender stands and keeps what it is given."""

    def __init__(self, reply: list[Any]) -> None:
        self.sent: list[tuple[Argument, ...]] = []
        self._reply = reply

    def run(
        self, prepared: PreparedScript, more: tuple[Argument, ...], **_: Any
    ) -> asyncio.Future[Any]:
        """Keep the call of a script and answer it at once."""
        self.sent.append(prepared.command(*more))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(self._reply)
        return future


def capture(
    call: Callable[[RedisStateStore], Awaitable[None]], *, namespace: str, reply: list[Any]
) -> Captured:
    """Return the command that a call of the store sends; ``reply`` is what it is answered."""
    listening = _Listening(reply)

    async def run() -> None:
        store = RedisStateStore.from_url("redis://127.0.0.1:1", namespace=namespace)
        vars(store.base.scripts)["transport"] = type("Transport", (), {"sender": listening})
        await call(store)

    asyncio.run(run())
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in listening.sent[0]]
    # An array's head, then two lines for a text and one for a number.
    return Captured(parts, 1 + sum(2 if isinstance(fact, bytes) else 1 for fact in reply))


def pump(server: BenchServer, prepared: Captured, commands: Iterable[bytes]) -> Measured:
    """Send written commands over several connections, many in each write.

    Reads only how many replies came. Errors: RuntimeError if one is an error.
    """
    for script in SCRIPTS.values():
        server.redis.script_load(script.text)
    waiting = iter(commands)
    done, spent = 0, 0.0
    with ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(_CONNECTIONS)
        ]
        while True:
            # Made before the clock runs: what is measured is the server.
            batches = [list(islice(waiting, _BATCH)) for _ in links]
            data = [b"".join(batch) for batch in batches]
            begin = time.perf_counter()
            for link, written in zip(links, data, strict=True):
                link.sendall(written)
            for link, batch in zip(links, batches, strict=True):
                _read(link, len(batch) * prepared.reply_lines)
            spent += time.perf_counter() - begin
            done += sum(map(len, batches))
            if not batches[-1]:
                return Measured(done, spent, 0.0, 0.0, 0.0)


def _read(link: socket.socket, lines: int) -> None:
    while lines > 0:
        heard = link.recv(1 << 16)
        if not heard or b"-ERR" in heard or b"-NOSCRIPT" in heard or b"-WRONGTYPE" in heard:
            raise RuntimeError(f"the server refused: {heard[:100]!r}")
        lines -= heard.count(b"\n")
