"""A message as a client gets it: a resumed one from its begin, as the client expects it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from redis_state.errors import RedisStateError
from redis_state.gateway.chat.ai_sdk.chunks import Chunk, JoinedChunks, MessageChunks, notice
from redis_state.gateway.chat.parts import Halted, Part, PauseDecided, PauseOpened, TextDropped
from redis_state.gateway.chat.places import EventPlace
from redis_state.gateway.chat.rows import Heard, StreamNotice, TaskRow
from redis_state.gateway.chat.shown import ShownCall
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.gateway.chat.tasks import ChatTask
from redis_state.serialization import codec

DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class MessageStream:
    """One client's stream of a message, which is a task.

    ``since`` are pauses: a client that has decided them has what came before.
    """

    task: ChatTask
    approvals: bool = True
    since: frozenset[str] = frozenset()

    async def chunks(self, place: EventPlace, *, is_new: bool = False) -> AsyncGenerator[bytes]:
        """Give the message behind a place; all of it, if the client is to join.

        Errors: those of the store, before the first chunk.
        """
        parts = self.task.parts(keeps_texts=False)
        message = MessageChunks(parts, self.task.task_id, approvals=self.approvals)
        chunks: list[Chunk] = []
        if not is_new:
            chunks = await self._past(parts, message, place)
        again = place.within == "~" or self.task.subtree is not None
        chunks = [*message.started(), *(chunks if again else [])]
        coming = self.task.rows.coming(place.cursor)
        async with aclosing(coming):
            await anext(coming, b"")
            halted = place.within == "~" and bool(await self.task.asks(parts, place.cursor))
            opening = _write([*chunks, *message.halted()]) + DONE if halted else _write(chunks)
            # An open stream does not hold what it has sent.
            chunks = []
            yield opening
            del opening
            if halted:
                return
            try:
                async for chunk in self._live(parts, message, coming):
                    yield chunk
            except RedisStateError:
                # An end without a word is that of a broken connection: the client resumes.
                return

    async def _past(
        self, parts: TaskParts, message: MessageChunks, place: EventPlace
    ) -> list[Chunk]:
        """Write the rows up to a place, without texts that were replaced since."""
        said, named = JoinedChunks(), dict[tuple[str, str], Chunk]()
        # The tools of old pauses that are open there: their ends are nothing without them.
        asked = dict[str, list[Chunk]]()
        async with aclosing(self.task.rows.past(place.cursor)) as past:
            async for row in past:
                read: Sequence[Part] = parts.feed(row.update)
                if any(
                    isinstance(part, PauseDecided) and part.pause_id in self.since for part in read
                ):
                    said, named, asked = JoinedChunks(), {}, {}
                kept = [part for part in read if not isinstance(part, TextDropped)]
                dropped = {part.text_id for part in read if isinstance(part, TextDropped)}
                if dropped:
                    said.drop(dropped)
                chunks = [each for each in message.write(kept) if each.get("id") not in dropped]
                if row.is_old:
                    # What a later one with its id takes the place of is not history.
                    named |= {
                        (each["type"], each["id"]): each
                        for each in chunks
                        if "data" in each and "id" in each
                    }
                    for part in read:
                        if isinstance(part, PauseOpened):
                            tool = [each for each in message.write([part]) if "data" not in each]
                            asked[part.pause_id] = tool
                        elif isinstance(part, PauseDecided):
                            asked.pop(part.pause_id, None)
                    parts.pass_by()
                else:
                    said.add(chunks)
                if place.within == "^" and any(isinstance(part, Halted) for part in read):
                    # What those below have written since is all that the client lacks.
                    said, named, asked = JoinedChunks(), {}, {}
        missing = [notice("resync", {"missed": parts.passed, "reason": "too_long"})]
        tools = [each for tool in asked.values() for each in tool]
        return [*(missing if parts.passed else []), *named.values(), *tools, *said.chunks()]

    async def _live(
        self, parts: TaskParts, message: MessageChunks, coming: AsyncGenerator[Heard]
    ) -> AsyncGenerator[bytes]:
        async for heard in coming:
            match heard:
                case TaskRow():
                    chunk = _write(message.write(parts.feed(heard.update)))
                    if await self.task.asks_in(heard, parts):
                        yield chunk + _write(message.halted()) + DONE
                        return
                    if chunk:
                        yield chunk
                case StreamNotice(name="end"):
                    yield _write(message.ended(*self.task.end_of(await self.task.state()))) + DONE
                case StreamNotice(name=name, data=data, kept_until=cursor):
                    chunks = [notice(name, data)]
                    if cursor is not None:
                        chunks += message.write(await self._went_back(parts, cursor))
                        if await self.task.asks(parts, cursor):
                            yield _write([*chunks, *message.halted()]) + DONE
                            return
                    yield _write(chunks)
                case _:
                    yield heard

    async def _went_back(self, parts: TaskParts, cursor: str) -> list[Part]:
        kept = await self.task.kept_until(cursor)
        for name in kept.shown.keys() - parts.shown.keys():
            # The client may not have it: it comes with its end.
            if isinstance(kept.shown[name], ShownCall):
                del kept.shown[name]
        return parts.go_back(kept)


def _write(chunks: Sequence[Chunk]) -> bytes:
    return b"".join(b"data: %s\n\n" % codec.encode(each) for each in chunks)
