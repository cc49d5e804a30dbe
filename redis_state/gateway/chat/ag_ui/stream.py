"""A run as a client gets it: from its place, through what it has seen, to the run's end.

What the client has seen is read from the log again, without a word, and the run continues behind
it. So an event comes once, with the same id, from any process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from redis_state.errors import RedisStateError
from redis_state.gateway.chat.ag_ui.events import AgUiEvent, RunEvents, at_ms
from redis_state.gateway.chat.parts import TextDropped
from redis_state.gateway.chat.places import BEGINNING, EventPlace, Within
from redis_state.gateway.chat.rows import Heard, StreamNotice, TaskRow
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.gateway.chat.tasks import ChatTask
from redis_state.gateway.streaming import events
from redis_state.serialization import codec


@dataclass(slots=True)
class RunStream:
    """One client's stream of a run. ``history`` are the messages before those of the task."""

    task: ChatTask
    run_id: str
    history: Sequence[dict[str, Any]]
    state: Any = None

    async def chunks(self, place: EventPlace, *, is_new: bool = False) -> AsyncGenerator[bytes]:
        """Give the events behind a place; a new task has none before it.

        Errors: CursorGap if rows behind the place are missing; those of the store. All of them
        before the first events.
        """
        # Who joins gets texts; to others they are given again only if one of them is dropped.
        parts = self.task.parts(self.state, keeps_texts=self._gives_texts(place))
        run = RunEvents(parts, self.task.session_id, self.run_id, self.history)
        rest = [] if is_new else await self._pass_over(parts, run, place)
        coming = self.task.rows.coming(place.cursor)
        async with aclosing(coming):
            # From here on an error is one of an open stream.
            first = await _first(coming)
            closed = await self._begin(parts, run, place, rest)
            if closed and not rest:
                return
            opening = first + b"".join(rest)
            # An open stream does not hold what it has sent.
            rest.clear()
            parts.forget_texts()
            yield opening
            del opening
            if closed:
                return
            try:
                async for chunk in self._live(parts, run, place.cursor, coming):
                    yield chunk
            except RedisStateError:
                yield events.come_back()

    async def _pass_over(self, parts: TaskParts, run: RunEvents, place: EventPlace) -> list[bytes]:
        """Read what the client has seen; return the rest of a row that it has seen a part of."""
        rest: list[bytes] = []
        await self.task.rows.check(place.cursor)
        async with aclosing(self.task.rows.past(place.cursor)) as past:
            async for row in past:
                if row.cursor == place.cursor and place.within == "." and place.sent is not None:
                    rest = await self._row(parts, run, row, place.sent)
                    continue
                run.pass_over(parts.feed(row.update))
                if row.is_old and self._gives_texts(place):
                    parts.pass_by()
        return rest

    async def _begin(
        self, parts: TaskParts, run: RunEvents, place: EventPlace, rest: list[bytes]
    ) -> bool:
        """Add what opens the stream; return whether that closes it too."""
        cursor, within, sent = place.cursor, place.within, place.sent or 0
        if within == "^":
            opened = run.resumed() if self._gives_texts(place) else run.started()
            rest += _write(opened, cursor, "^", sent)
            return False
        if within == "~":
            rest += _write(run.joined(), cursor, "~", sent)
            sent = 0
        if pauses := await self.task.asks(parts, cursor):
            rest += _write(run.interrupted(pauses), cursor, "!", sent)
            return True
        if within != "!":
            return False
        state = await self.task.state()
        if not parts.halted and (state is None or state.status.is_terminal):
            rest += _write(run.ended(*self.task.end_of(state)), cursor, "!", sent)
            return True
        # The run that the client knows is over; the task runs again, or did.
        rest += _write(run.started(), cursor, "^")
        return False

    def _gives_texts(self, place: EventPlace) -> bool:
        """Return whether who begins at a place gets the texts before it."""
        if self.task.subtree is not None and place.within == "^":
            # While a run was closed, those below its task may have written.
            return place.cursor != BEGINNING
        return place.within == "~"

    async def _live(
        self, parts: TaskParts, run: RunEvents, cursor: str, coming: AsyncGenerator[Heard]
    ) -> AsyncGenerator[bytes]:
        async for heard in coming:
            match heard:
                case TaskRow():
                    cursor = heard.cursor
                    chunk = b"".join(await self._row(parts, run, heard))
                    if pauses := await self.task.asks_in(heard, parts):
                        yield chunk + b"".join(_write(run.interrupted(pauses), cursor, "!"))
                        return
                    if chunk:
                        yield chunk
                case StreamNotice(name="end"):
                    ended = run.ended(*self.task.end_of(await self.task.state()))
                    yield b"".join(_write(ended, cursor, "!"))
                case StreamNotice(name=name, data=data, kept_until=until):
                    given = [run.custom_event(name, data)]
                    pauses = []
                    if until is not None:
                        given += run.went_back(await self.task.kept_until(until, self.state))
                        pauses = await self.task.asks(parts, until)
                    if pauses:
                        given += run.interrupted(pauses)
                    # Without ids: who connects again behind a lost row is to join.
                    yield b"".join(map(_event, given))
                    if pauses:
                        return
                case _:
                    yield heard

    async def _row(
        self, parts: TaskParts, run: RunEvents, row: TaskRow, sent: int = 0
    ) -> list[bytes]:
        read, known = parts.feed(row.update), None
        if any(isinstance(part, TextDropped) for part in read):
            known = await self.task.kept_until(row.cursor, self.state)
        return _row_events(row, run.write(read, known), sent)


async def _first(coming: AsyncGenerator[Heard]) -> bytes:
    """Return the first word of the hub, which says when to connect again."""
    first = await anext(coming, b"")
    return first if isinstance(first, bytes) else b""


def _row_events(row: TaskRow, events: Sequence[AgUiEvent], sent: int = 0) -> list[bytes]:
    moment = row.update.created_at
    return _write([at_ms(each, moment) for each in events], row.cursor, ".", sent, whole=True)


def _write(
    events: Sequence[AgUiEvent], cursor: str, within: Within, sent: int = 0, *, whole: bool = False
) -> list[bytes]:
    """Write events behind those that were sent. The last one of a row has the row's own cursor."""
    # An empty chunk would end the stream, and an id of no event is never sent.
    written: list[bytes] = []
    for number, each in enumerate(events[sent:], start=sent + 1):
        last = whole and number == len(events)
        written.append(
            _event(each, EventPlace(cursor) if last else EventPlace(cursor, within, number))
        )
    return written


def _event(event: AgUiEvent, place: EventPlace | None = None) -> bytes:
    head = b"" if place is None else b"id: %s\n" % str(place).encode()
    return b"%sdata: %s\n\n" % (head, codec.encode(event))
