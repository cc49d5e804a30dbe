"""How many streams a creator has: counted before they are made, until they are gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis_state.scripts import Reply, ReplyCode
from redis_state.stores.base import Base, ms
from redis_state.transport.clock import ms_of

# A claim holds so long without a stream: its creator may have died.
_CLAIM_MS = 60_000
_LOOKED_AT = 100
_GONE = -2


class CreatedStreams:
    """The streams that one creator has made and that still live, up to a number.

    A path is counted before its stream is made, and again afterwards, for what is left of its
    lifetime. So a crash between them leaves a claim, and no stream that is not counted. A lifetime
    that began again is seen when its first end has passed and the creator has no room left. A
    stream that another one deleted counts until then.
    """

    def __init__(self, base: Base, creator: str, *, most: int) -> None:
        self._base = base
        self._index = base.keys.streams_of(creator)
        self._most = most
        self._keep_ms = ms(base.settings.longest_stream_ttl)

    async def claim(self, path: str) -> str | None:
        """Count a path, and return the mark of the claim; None if there is no room."""
        while True:
            reply = await self._claim(path, _CLAIM_MS, most=self._most)
            if reply.word is ReplyCode.OK:
                return reply.text(0)
            if not await self._look():
                return None

    async def made(self, path: str) -> None:
        """Count a stream that was made, for what is left of its lifetime."""
        left_ms = await self._left_ms(path)
        if left_ms > 0:
            await self._claim(path, left_ms, most=0)

    async def release(self, path: str, mark: str) -> None:
        """Count a path no more if there is no stream, and nobody has claimed it since the mark."""
        if await self._left_ms(path) == _GONE:
            await self._release(path, mark)

    @asynccontextmanager
    async def deleting(self, path: str) -> AsyncGenerator[None]:
        """Count a stream no more that is deleted in the block."""
        # Before the deletion: a stream that is made behind it has another mark.
        score = await self._base.scripts.transport.commands.zscore(self._index, path)
        yield
        if score is not None:
            await self._release(path, _mark(score))

    async def _claim(self, path: str, ttl_ms: int, *, most: int) -> Reply:
        return await self._base.scripts.claim_stream(
            self._index, path=path, ttl_ms=ttl_ms, most=most, keep_ms=self._keep_ms
        )

    async def _release(self, path: str, mark: str) -> None:
        await self._base.scripts.release_stream(self._index, path=path, mark=mark)

    async def _left_ms(self, path: str) -> int:
        info = self._base.keys.stream(path).info
        return int(await self._base.scripts.transport.commands.pttl(info))

    async def _look(self) -> bool:
        """Look at paths whose time has passed; return whether there were any."""
        commands = self._base.scripts.transport.commands
        now_ms = ms_of(await commands.time())
        found = await commands.zrange_scored(self._index, 0, _LOOKED_AT - 1)
        scores = zip(found[::2], found[1::2], strict=True)
        passed = [(path, score) for path, score in scores if float(score) <= now_ms * 1000]
        for written, score in passed:
            path = written.decode("utf-8", "surrogatepass")
            left_ms = await self._left_ms(path)
            if left_ms == _GONE:
                await self._release(path, _mark(score))
            else:
                await self._claim(path, max(left_ms, 1), most=0)
        return bool(passed)


def _mark(score: bytes | float) -> str:
    return f"{float(score):.0f}"
