"""Text of a model, published while it is written: tokens joined into rows.

A row leaves when 1 KB waits or 40 ms have passed since its first token, one at a time. So a slow
server gets fewer and larger rows. A row says whose text it is, its generation and its number:

    {"text": "Hel", "text_id": "answer#1", "generation": "1795398718523.1", "part": 1}
    {"text": "lo.", "text_id": "answer#1", "generation": "1795398718523.1", "part": 2, "end": true}

A model does not repeat itself. So a text that is begun again, because its run died or its step is
retried, is another *generation*. The first row of a generation replaces what earlier ones have
shown. It has ``"reset": true`` if an earlier generation has rows. A generation is named by the
epoch of its run and its number in the run. A server whose history went back gives no epoch again.

The journal has one entry for each text: its last generation, how many rows that has, and whether it
ended. It is written in the same step as the row. Outside of a step, a replay passes a text that has
ended, and publishes nothing. The work of a step is done again until its result is recorded, and its
text is new each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing, suppress
from types import TracebackType
from typing import Any, Final, Self, cast

from redis_state import limits
from redis_state.errors import InvalidField, RedisStateError
from redis_state.models import StateUpdate, UpdateType
from redis_state.scripts import LaneState, TaskKeys
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.timeouts import timeout
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.messaging.whole_tokens import WholeTokens
from redis_state.worker.tasks.move_parts import announcement
from redis_state.worker.tasks.started import StartedRun

JOIN_MS: Final = 40
JOIN_BYTES: Final = 1_024
# However much waits: a row that a watcher can still show at once.
MAX_ROW_CHARACTERS: Final = 16_384
# A producer that drains waits for the server beyond that.
MOST_WAITING_BYTES: Final = 262_144
# For what waits, when its writer is cancelled.
_LAST_S: Final = 1.0


class Texts:
    """The texts of one run, by their places: what earlier runs have published, and this one."""

    def __init__(self, store: RedisStateStore, started: StartedRun, inbox: Inbox) -> None:
        self.store = store
        self.started = started
        self.inbox = inbox
        self.keys: TaskKeys = store.tasks.keys(started.state.session_id, started.state.task_id)
        self._known: dict[str, tuple[str, int, bool]] = {
            entry: (str(note[0]), int(note[1]), bool(note[2]))
            for entry, note in started.journal.items()
            if entry.startswith("text:")
        }
        self._begun = 0

    def begin(
        self, entry: str, kind: UpdateType, join_ms: int, join_bytes: int, *, in_work: bool
    ) -> TextWriter:
        """Make the writer of a text, which is a replay's own if an earlier run has finished it."""
        limits.count("join_ms", join_ms, least=0)
        limits.count("join_bytes", join_bytes)
        ended = entry in self._known and self._known[entry][2]
        ended = ended or self.started.replay.rehearsal is not None
        return TextWriter(
            self,
            entry,
            UpdateType(kind),
            join_ms / 1000,
            join_bytes,
            swallows=ended and not in_work,
        )

    def next_generation(self, entry: str) -> tuple[str, bool]:
        """Return the name of a new generation, and whether an earlier one has rows."""
        self._begun += 1
        return f"{self.started.held.epoch}.{self._begun}", entry in self._known

    async def publish(
        self, entry: str, kind: UpdateType, content: dict[str, Any], *, ended: bool
    ) -> None:
        """Publish a row, and note in the journal how far its text is. Errors: LeaseLost."""
        row_id = (content["generation"], content["part"])
        await self.append(entry, kind, content, (*row_id, ended), row_id=row_id)

    async def append(
        self,
        entry: str,
        kind: UpdateType,
        content: dict[str, Any],
        note: tuple[str, int, bool],
        *,
        row_id: tuple[str, int],
    ) -> None:
        """Append a row, and keep a note of it. ``row_id`` is its generation and number.

        A row whose id the log has is dropped in silence, with its note. Errors: LeaseLost.
        """
        started, state = self.started, self.started.state
        update = StateUpdate(
            session_id=state.session_id,
            task_id=state.task_id,
            trace_id=state.trace_id,
            update_id=codec.fingerprint("text", started.secret, entry, *row_id),
            update_type=kind,
            content=content,
        )
        self._known[entry] = note
        reply = await self.store.base.scripts.emit_update(
            self.keys,
            announcement(self.store, update, run=started.held.epoch),
            mark=started.replay.mark,
            lane=LaneState(entry, codec.encode(list(note))),
        )
        what = f"task {state.task_id!r}"
        started.replay.learn(reply, 0, f"update:{update.update_id}", what=what)


class TextWriter:
    """Publish a text token by token. Made by `TaskContext.text`; use it in ``async with``."""

    def __init__(
        self,
        texts: Texts,
        entry: str,
        kind: UpdateType,
        join_s: float,
        join_bytes: int,
        *,
        swallows: bool,
    ) -> None:
        self._texts = texts
        self._entry = entry
        self._kind = kind
        self._join_s = join_s
        self._join_bytes = join_bytes
        self._swallows = swallows
        self._written: list[str] = []
        self._waiting: deque[str] = deque()
        self._waiting_bytes: int = 0
        self._tokens = WholeTokens(texts.started.state.session_id)
        self._part = 0
        self._generation = ""
        self._resets = False
        self._alarm: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._open = False

    @property
    def text_id(self) -> str:
        """The name of the text in its rows, the same in each run."""
        return self._entry.partition(":")[2]

    @property
    def text(self) -> str:
        """What was written so far, by this run."""
        return "".join(self._written)

    @property
    def published(self) -> bool:
        """Whether rows are published: not if an earlier run has finished this text."""
        return not self._swallows

    async def __aenter__(self) -> Self:
        """Begin the text, once. A checkpoint. Errors: TaskCancelled; InvalidField."""
        if self._generation:
            raise InvalidField("text", "was begun before: call ctx.text() for each text")
        await self._texts.inbox.checkpoint()
        self._generation, self._resets = self._texts.next_generation(self._entry)
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the text. After an exception what was written is published, without an end."""
        self._open = False
        self._stop_alarm()
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            # By a timeout of the handler's own, perhaps: it goes on, and so do those who watch.
            with suppress(TimeoutError):
                async with timeout(_LAST_S):
                    await self._abandon(of_its_own=self._texts.inbox.over is None)
            return
        if kind is not None:
            await self._abandon(of_its_own=issubclass(kind, Exception))
            return
        await self._settle()
        if not self._swallows:
            await self._send_all(ended=True)

    def write(self, token: str) -> None:
        """Add a token. It is published with those of the next moments.

        Does not wait: give the loop its turns, as ``async for`` over a model's stream does. What a
        slow server has not taken yet waits in memory: `drain` bounds it. Errors: InvalidField; what
        ended the run, such as TaskCancelled, so that a stop reaches the producer; what failed to
        publish the tokens before.
        """
        if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("token", f"text is needed, not {type(token).__name__}")
        if not self._open:
            raise InvalidField("token", "the text is not open: write in 'async with'")
        self._raise_failed()
        if not token:
            return
        self._written.append(token)
        if self._swallows:
            return
        # In parts that a row holds: one that is split is not copied for each row.
        for start in range(0, len(token), MAX_ROW_CHARACTERS):
            self._waiting.append(token[start : start + MAX_ROW_CHARACTERS])
        self._waiting_bytes += _bytes_of(token)
        if self._sending is not None:
            return
        if self._waiting_bytes >= self._join_bytes:
            self._begin_sending()
        elif self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._join_s, self._begin_sending)

    async def drain(self) -> None:
        """Wait while more than 256 KB have not been published yet; else return at once.

        Call it after each `write` for a producer that can wait. Errors: those of `write`.
        """
        while self._waiting_bytes > MOST_WAITING_BYTES and self._open:
            self._begin_sending()
            await self._settle()

    async def flush(self) -> None:
        """Publish what was written so far, and wait until it is. A checkpoint.

        What may be the begin of a pause's token waits for the rest of it.
        """
        self._stop_alarm()
        await self._texts.inbox.checkpoint()
        await self._settle()
        await self._send_all(ended=False, is_last=False)

    def _begin_sending(self) -> None:
        self._stop_alarm()
        if self._sending is None and self._open:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Publish what waits, and what comes meanwhile if that makes another full row."""
        row = ""
        try:
            while row := self._taken():
                await self._send_row(row, ended=False)
                if self._waiting_bytes < self._join_bytes:
                    break
        except BaseException as error:  # noqa: BLE001 - of the next write, or of the end
            self._failed = self._failed or error
        finally:
            self._sending = None
        # What waits for the rest of a token leaves with the next write.
        if row and self._waiting and self._open and self._alarm is None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._join_s, self._begin_sending)

    async def _send_all(self, *, ended: bool, is_last: bool = True) -> None:
        rows: list[str] = []
        while row := self._taken(is_last=is_last):
            rows.append(row)
        if ended and not rows:
            rows.append("")
        for number, row in enumerate(rows, start=1):
            await self._send_row(row, ended=ended and number == len(rows))

    async def _send_row(self, text: str, *, ended: bool) -> None:
        await self._texts.inbox.checkpoint(updates=1)
        self._part += 1
        content: dict[str, Any] = {
            "text": text,
            "text_id": self.text_id,
            "generation": self._generation,
            "part": self._part,
        }
        if self._resets and self._part == 1:
            content["reset"] = True
        if ended:
            content["end"] = True
        await self._texts.publish(self._entry, self._kind, content, ended=ended)

    def _taken(self, *, is_last: bool = False) -> str:
        """Take what waits, as much as a row may have; nothing of what has to wait on."""
        taken: list[str] = []
        room = MAX_ROW_CHARACTERS
        while self._waiting and room:
            token = self._waiting.popleft()
            if len(token) > room:
                self._waiting.appendleft(token[room:])
                token = token[:room]
            taken.append(token)
            room -= len(token)
        joined, last = "".join(taken), is_last and not self._waiting
        row, rest = self._tokens.divide(joined, is_last=last)
        if rest:
            self._waiting.appendleft(rest)
        self._waiting_bytes -= _bytes_of(row)
        return row

    async def _settle(self) -> None:
        """Wait for the row that is being published. Errors: what it failed with."""
        sending = self._sending
        if sending is not None:
            await asyncio.wait({sending})
        self._raise_failed()

    async def _abandon(self, *, of_its_own: bool) -> None:
        """Leave a text without its end. An exception of the handler's own lets it be as it is."""
        sending = self._sending
        if sending is not None:
            if not of_its_own:
                sending.cancel()
            await asyncio.wait({sending})
        if of_its_own and self._waiting and not self._swallows and self._failed is None:
            with suppress(RedisStateError):  # the handler's own exception is on its way
                await self._send_all(ended=False)

    def _raise_failed(self) -> None:
        self._texts.inbox.raise_if_over()
        if self._failed is not None:
            raise self._failed

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


async def write_all(
    out: TextWriter, tokens: AsyncIterator[str] | Awaitable[AsyncIterator[str]]
) -> str:
    """Write what a model yields as a text; return the whole. The producer is closed in any case."""
    async with out, AsyncExitStack() as closing:
        found = await tokens if isinstance(tokens, Awaitable) else tokens
        if isinstance(found, AsyncGenerator):
            producer = cast("AsyncGenerator[str, None]", found)
            await closing.enter_async_context(aclosing(producer))
        async for token in found:
            out.write(token)
            await out.drain()
    return out.text


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
