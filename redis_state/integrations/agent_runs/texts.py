"""The texts of one response of a model that are being written, each at its place."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

from redis_state.worker import TextWriter

Place = TypeVar("Place", bound=Hashable)


class OpenTexts(Generic[Place]):
    """Open texts by their places. Those that are left at the end of the block end with it."""

    def __init__(self) -> None:
        self._open: dict[Place, tuple[AsyncExitStack, TextWriter]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for place in list(self._open):
            stack, _ = self._open.pop(place)
            await stack.__aexit__(kind, error, traceback)

    def __contains__(self, place: Place) -> bool:
        return place in self._open

    async def begin(self, place: Place, writer: TextWriter) -> None:
        """Begin a text at a place that has none."""
        stack = AsyncExitStack()
        self._open[place] = stack, await stack.enter_async_context(writer)

    async def write(self, place: Place, text: str) -> None:
        """Add to the text at a place, if one is open there. Waits for a server that is behind."""
        if place in self._open:
            writer = self._open[place][1]
            writer.write(text)
            await writer.drain()

    async def flush(self, place: Place) -> None:
        """Publish the text at a place as far as it is, if one is open there."""
        if place in self._open:
            await self._open[place][1].flush()

    async def end(self, place: Place) -> None:
        """End the text at a place, if one is open there."""
        if place in self._open:
            stack, _ = self._open.pop(place)
            await stack.aclose()
