"""Who waits for a durable stream: one subscription for each stream and process, and shared reads.

A client is only an offset. What is read behind it is read once for all clients that are there, and
written once. A client that does not take what it is sent holds one page, and nobody up. A client
that waits reads again now and then: so its stream lives, or is known to be gone.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from typing import Final, Self
from weakref import ref

from redis_state.errors import BackendUnavailable, RedisStateError
from redis_state.gateway.durable_streams.frames import HEARTBEAT_S, event_lines
from redis_state.models.streams import StreamPage, StreamView, media_type
from redis_state.stores.streams.streams import StreamStore
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_MOST_SHARED: Final = 64
_LINGER_S: Final = 2.0
_PAGE_BYTES: Final = 256 << 10
# Of streams whose lifetime is short, a part of it.
_SHARED_S: Final = 1.0
_SHORTEST_WAIT_S: Final = 0.1


class SharedPage:
    """A page, and its event, which is made for the first client that wants it.

    ``sent`` is the part of the page that its event has. A character of a text whose bytes are not
    all there is left for the next event, unless the stream is closed.
    """

    def __init__(self, page: StreamPage) -> None:
        self.page = page
        whole = page.closed or not is_text(page.stream)
        self.sent: StreamPage = page if whole else page.whole_characters()

    @property
    def shared_s(self) -> float:
        """For how long it answers reads of others: none but one of the end does."""
        if not self.page.at_end:
            return 0.0
        ttl_s = self.page.stream.ttl_s
        return _SHARED_S if ttl_s is None else min(_SHARED_S, ttl_s / 4)

    @property
    def wait_s(self) -> float:
        """After how long a client that waits behind it reads again, so that the stream lives."""
        ttl_s = self.page.stream.ttl_s
        return HEARTBEAT_S if ttl_s is None else min(HEARTBEAT_S, max(_SHORTEST_WAIT_S, ttl_s / 2))

    @cached_property
    def event(self) -> bytes:
        """Its rows as one event; nothing without a row."""
        if not self.sent.rows:
            return b""
        body = self.sent.body()
        if is_binary(self.page.stream):
            return event_lines("data", b64encode(body))
        return event_lines("data", body.decode("utf-8", "replace").encode())


class StreamFeed:
    """Hear of one stream, for all of its clients."""

    def __init__(self, store: StreamStore, path: str) -> None:
        self.path = path
        self.clients = 0
        self.left_at: float = 0.0
        # How often something was heard: what was read before may not be all.
        self.version: int = 0
        self.error: RedisStateError | None = None
        self._store = store
        self._reads: dict[str, asyncio.Task[SharedPage]] = {}
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="redis_state durable stream")

    async def ready(self) -> None:
        """Wait until changes are heard. Errors: those of the store."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    async def read(self, offset: str) -> SharedPage:
        """Read behind an offset, once for all who are there. Errors: those of the store."""
        reading = self._reads.get(offset)
        if reading is None:
            reading = asyncio.create_task(self._read(offset))
            reading.add_done_callback(partial(self._was_read, offset))
            if len(self._reads) < _MOST_SHARED:
                self._reads[offset] = reading
        return await asyncio.shield(reading)

    async def changed(self, since: int, within_s: float) -> bool:
        """Wait until something was heard since a version; return whether it was.

        Errors: that of a feed that hears no more. Its clients would read again without a pause.
        """
        with suppress(TimeoutError):
            async with timeout(max(0.0, within_s)):
                while self.version == since and self.error is None:
                    await self._changed.wait()
        if self.error is not None:
            raise self.error
        return self.version != since

    def wake(self) -> None:
        """Wake all clients, so that they read again."""
        self.version += 1
        self._reads.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        self._ready.set()

    async def aclose(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _read(self, offset: str) -> SharedPage:
        page = await self._store.read(self.path, offset=offset, most_bytes=_PAGE_BYTES)
        shared = SharedPage(page)
        if page.at_end or shared.sent.rows or not page.rows:
            return shared
        # Its one row is the begin of a character, and the rest is in the rows behind it.
        more = await self._store.read(self.path, offset=page.offset, most_bytes=_PAGE_BYTES)
        return SharedPage(page.joined(more))

    def _was_read(self, offset: str, reading: asyncio.Task[SharedPage]) -> None:
        """Keep what was read for as long as it is shared."""
        failed = reading.cancelled() or reading.exception() is not None
        shared_s = 0.0 if failed else reading.result().shared_s
        if shared_s:
            # The timer holds no page: something may be heard before.
            reading.get_loop().call_later(shared_s, self._drop, offset, ref(reading))
        else:
            self._drop(offset, ref(reading))

    def _drop(self, offset: str, reading: ref[asyncio.Task[SharedPage]]) -> None:
        if offset in self._reads and self._reads[offset] is reading():
            del self._reads[offset]

    async def _run(self) -> None:
        try:
            async with self._store.listening(self.path) as heard:
                while True:
                    await heard.next()
                    self.wake()
        except RedisStateError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the watch of a durable stream failed")
            self._fail(BackendUnavailable("gateway", type(error).__name__))

    def _fail(self, error: RedisStateError) -> None:
        self.error = error
        self.wake()


class StreamFeeds:
    """The feeds of a process and loop. Use it in ``async with``."""

    def __init__(self, store: StreamStore) -> None:
        self.closing: bool = False
        self._store = store
        self._feeds: dict[str, StreamFeed] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_streams()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        feeds, self._feeds = list(self._feeds.values()), {}
        await asyncio.gather(*(feed.aclose() for feed in feeds))

    @property
    def watched(self) -> int:
        """How many streams are watched."""
        return len(self._feeds)

    def end_streams(self) -> None:
        """End the reads of all clients. Safe to repeat."""
        self.closing = True
        for feed in self._feeds.values():
            feed.wake()

    @asynccontextmanager
    async def join(self, path: str) -> AsyncGenerator[StreamFeed]:
        """Hear of a stream for the length of the block. Errors: those of the store."""
        if self.closing:
            raise BackendUnavailable("gateway", "it is shutting down")
        feed = self._feeds.get(path)
        if feed is None or feed.error is not None:
            feed = self._feeds[path] = StreamFeed(self._store, path)
        feed.clients += 1
        try:
            await feed.ready()
            yield feed
        finally:
            feed.clients -= 1
            feed.left_at = asyncio.get_running_loop().time()

    async def _sweep(self) -> None:
        """End feeds that nobody needs: a long poll comes again soon, and finds its own."""
        while True:
            await asyncio.sleep(_LINGER_S / 2)
            until = asyncio.get_running_loop().time() - _LINGER_S
            unused = [
                feed for feed in self._feeds.values() if not feed.clients and feed.left_at <= until
            ]
            for feed in unused:
                if self._feeds.get(feed.path) is feed:
                    del self._feeds[feed.path]
            await asyncio.gather(*(feed.aclose() for feed in unused))


def is_text(stream: StreamView) -> bool:
    """Return whether events have its rows as text, whose characters rows may split."""
    return not stream.is_json and not is_binary(stream)


def is_binary(stream: StreamView) -> bool:
    """Return whether events cannot have its rows as they are."""
    return not stream.is_json and not media_type(stream.content_type).startswith("text/")
