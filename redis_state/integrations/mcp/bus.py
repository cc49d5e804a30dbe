"""The SDK's SubscriptionBus on Redis: a change that one replica publishes reaches all listeners.

Changes are rows of a short log. So a replica that was cut off gets what it missed. The listeners
of one that was away for longer hear that every list may have changed. So do those of one that
cannot read a change, for want of a key.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Self, cast

from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from redis_state import RedisStateStore
from redis_state.errors import BackendError, ConfigError, CursorGap, InvalidField, NoConnection
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.serialization.fields import text

log: logging.Logger = logging.getLogger(__name__)

_BOUNDS = Bounds(1000, 86_400_000)
_AGAIN_S = 1.0
_LISTS: tuple[type[ServerEvent], ...] = (ToolsListChanged, PromptsListChanged, ResourcesListChanged)
_KINDS: dict[str, type[ServerEvent]] = {kind.__name__: kind for kind in (*_LISTS, ResourceUpdated)}


class RedisSubscriptionBus:
    """The bus of the replicas of one server, for ``MCPServer(subscriptions=bus)``.

    Enter its block before the server serves, and leave it at the end. Entering waits for a server
    that cannot be reached, and raises NoConnection if a retry is useless. Servers with different
    tools on one namespace give their bus a ``name`` each. Errors: InvalidField.
    """

    def __init__(self, store: RedisStateStore, *, name: str = "server") -> None:
        if not text("name", name):
            raise InvalidField("name", "must not be empty")
        base = store.base
        self._base = base
        self._log = Log(base.scripts, base.keys.mcp_changes(name), _BOUNDS, announce=True)
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._closed = False
        following = self._follow()
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait({begun, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        except BaseException:
            await self.aclose()
            raise
        finally:
            begun.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Listen no more, until its block is entered again. Safe to repeat."""
        self._closed = True
        following, self._following = self._following, None
        self._begun.clear()
        if following is not None:
            following.cancel()
            await asyncio.wait({following})

    async def publish(self, event: ServerEvent) -> None:
        """Publish a change to the listeners of all replicas, in the order of the calls.

        A listener of this process is called when the change comes back from the server. Errors:
        BackendError.
        """
        data = [type(event).__name__]
        if isinstance(event, ResourceUpdated):
            data.append(event.uri)
        sealed = self._base.payloads.write(data, field="change")
        await self._log.add((secrets.token_urlsafe(12).encode(), sealed))

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Call a listener with each change from now on; return what ends that.

        Before its block it begins to listen now, and misses what is published meanwhile. Errors:
        ConfigError for a bus that was closed.
        """
        if self._closed:
            raise ConfigError("this bus is closed: subscribe before aclose, or enter its block")
        self._follow()
        token = object()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    def _follow(self) -> asyncio.Task[None]:
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(
                self._listen(), name="redis_state mcp bus"
            )
        return self._following

    async def _listen(self) -> None:
        cursor: str | None = None
        while True:
            try:
                if cursor is None:
                    cursor = await self._log.end()
                    self._begun.set()
                async with aclosing(self._log.follow(after=cursor)) as rows:
                    async for row in rows:
                        cursor = row.cursor
                        self._publish(row)
            except CursorGap as gap:
                cursor = gap.resume_after
                self._publish_lists()
            except BackendError as error:
                if cursor is None and isinstance(error, NoConnection) and error.final:
                    raise
                log.warning("changes of an MCP server are not heard: %s", error)
                await asyncio.sleep(_AGAIN_S)

    def _publish(self, row: Row) -> None:
        event = self._base.read_row("mcp-changes", "change", row, self._read)
        if event is None:
            self._publish_lists()
        else:
            self._call(event)

    def _publish_lists(self) -> None:
        """Call the listeners for all lists: which of them have changed is not known."""
        for kind in _LISTS:
            self._call(kind())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    def _read(self, row: Row) -> ServerEvent:
        found: Any = codec.decode(self._base.payloads.open(row.data, of="a bus", field="change"))
        kind, *values = cast("list[Any]", found)
        return _KINDS[kind](*values)

    def _call(self, event: ServerEvent) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of an MCP server's changes has failed")
