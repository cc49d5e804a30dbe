"""What a server executes, by its MONITOR: each request, and each command of a script."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender

_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
# They name channels.
_NO_KEYS = {b"PUBLISH", b"SPUBLISH"}


@dataclass
class Request:
    """A request as it was sent, words escaped, and what its script called."""

    words: list[bytes]
    called: list[list[bytes]] = field(default_factory=list[list[bytes]])

    @property
    def name(self) -> str:
        """The command."""
        return self.words[0].decode().upper()

    @property
    def keys(self) -> list[bytes]:
        """The keys that a script was given."""
        return self.words[3 : 3 + int(self.words[2])]


@asynccontextmanager
async def monitored(path: str, admin: Sender) -> AsyncGenerator[list[Request]]:
    """Collect what the server at a unix socket executes in the block; all is there at its end."""
    requests: list[Request] = []
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 28)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"

    async def collect() -> None:
        async for line in reader:
            words: list[bytes] = _WORD.findall(line.partition(b"] ")[2])
            if b" lua] " in line[:40]:
                requests[-1].called.append(words)
            else:
                requests.append(Request(words))

    collecting = asyncio.create_task(collect())
    try:
        yield requests
        last = uuid.uuid4().hex
        await admin.send("ECHO", last, repeatable=True)
        await eventually(
            lambda: any(last.encode() in each.words for each in requests), "all was shown"
        )
    finally:
        collecting.cancel()
        writer.close()


async def undeclared(request: Request, admin: Sender) -> list[bytes]:
    """List the keys that a script used and was not given."""
    found: list[bytes] = []
    for words in request.called:
        if words[0].upper() in _NO_KEYS:
            continue
        flags = await admin.send("COMMAND", "INFO", words[0], repeatable=True)
        if flags[0][3] == 0:
            continue
        used: list[bytes] = await admin.send("COMMAND", "GETKEYS", *words, repeatable=True)
        found += [key for key in used if key not in request.keys]
    return found
