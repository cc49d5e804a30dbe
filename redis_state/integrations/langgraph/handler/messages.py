"""What models write in a graph, as events of `messages`: the text of a message joined into rows.

LangGraph yields a chunk for each token. Chunks of one message that have nothing but text become one
chunk, whose row leaves as those of `TaskContext.text` do. Its metadata is that of the first. All
other chunks are rows of their own. They and all other events wait until the text before them is
published, so the order stays. Only the begin of a pause's token waits for the rest of it.

The journal has one entry for each message: how long the text is that was published, and a digest of
it. A step that runs again may write a message again under its id. What is published of that waits
to be compared, and is not published again. If it is another text, all of it is published, and its
first row has ``"reset": true``: it replaces what was published of the message before. A text that
is shorter is known as another one when the message, its node or the stretch of the graph ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

from langchain_core.messages import AIMessageChunk

from redis_state.integrations.agent_runs.texts import OpenTexts
from redis_state.models import UpdateType
from redis_state.serialization import codec
from redis_state.worker import TaskContext, TextWriter
from redis_state.worker.tasks.messaging.text import JOIN_BYTES, JOIN_MS, Texts

_BLOCK = frozenset({"type", "text", "index", "id"})
# What LangGraph's path of a node begins with that runs once in a step.
_PULL = "__pregel_pull"


def graph_event(mode: str, namespace: Sequence[str], data: Any) -> dict[str, Any]:
    """Return what a row says of an event of a graph."""
    return {"graph": mode, "namespace": list(namespace), "data": codec.plain(data)}


@dataclass(slots=True)
class _Chunk:
    """A chunk that has nothing but text, and what it has around that."""

    text: str = field(repr=False)
    around: tuple[Any, ...] = field(repr=False)
    chunk: AIMessageChunk = field(repr=False)
    metadata: Any = field(repr=False)

    def event(self, namespace: Sequence[str], text: str) -> dict[str, Any]:
        """Return the event of this chunk with another text."""
        given: Any = self.chunk.content
        content: Any = text if isinstance(given, str) else [{**given[0], "text": text}]
        chunk = self.chunk.model_copy(update={"content": content})
        return graph_event("messages", namespace, (chunk, self.metadata))


@dataclass(slots=True)
class _Message:
    """The text of one message, as far as this stretch of its graph has written it."""

    namespace: tuple[str, ...]
    # The tasks of LangGraph that it is written in, from the outermost: "node:id".
    tasks: list[str]
    # The chunk that begins the row that is being written.
    first: _Chunk
    # What was published of it before: the digest of a text, and how long that is.
    digest: str = ""
    length: int = 0
    # What comes until it can be compared with that.
    held: list[str] = field(default_factory=list[str], repr=False)
    held_length: int = 0
    published: int = 0
    hashed: Any = field(default_factory=hashlib.sha256, repr=False)
    resets: bool = False

    def has_ended(self, namespace: tuple[str, ...], mode: str, event: Any) -> bool:
        """Return whether an event shows that the task that writes this has its result.

        `updates` has the name of a node alone. Nodes that `Send` calls may share it, and so may
        calls of an `@task`: they end with their step.
        """
        if mode not in {"tasks", "updates"} or not isinstance(event, dict):
            return False
        shown = cast("dict[str, Any]", event)
        if mode == "tasks":
            ends = f":{shown.get('id')}"
            return not shown.get("error") and any(task.endswith(ends) for task in self.tasks)
        about = self.first.metadata
        is_alone = tuple(about.get("langgraph_path") or ())[:1] == (_PULL,)
        return self.namespace == namespace and is_alone and about.get("langgraph_node") in shown

    def hold(self, text: str, *, ended: bool = False) -> str:
        """Add to the text; return what of it is to be published, if that is known."""
        if not self.length:
            return text
        self.held.append(text)
        self.held_length += len(text)
        if self.held_length < self.length and not ended:
            return ""
        whole, length = "".join(self.held), self.length
        self.held, self.held_length, self.length = [], 0, 0
        if len(whole) >= length and _digest(_hashed(whole[:length])) == self.digest:
            self.hashed, self.published = _hashed(whole[:length]), length
            return whole[length:]
        self.resets = bool(whole)
        return whole


class MessageTexts(Texts):
    """The texts of messages in one run of a graph. Use it in ``async with`` for each stretch."""

    def __init__(self, ctx: TaskContext) -> None:
        started = ctx._started  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this package
        super().__init__(ctx.store, started, ctx.inbox)
        self._messages: dict[str, _Message] = {}
        self._open: OpenTexts[str] = OpenTexts()

    async def __aenter__(self) -> Self:
        self._messages.clear()
        self._open = OpenTexts()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self._open.__aexit__(kind, error, traceback)
            return
        # A node that interrupts has written what it writes, and no checkpoint comes behind it.
        async with self._open:
            for entry in self._messages:
                await self._end(entry)

    async def add(self, step: str, namespace: tuple[str, ...], event: Any) -> bool:
        """Add an event of `messages` to its message's text; return whether that is all of it.

        ``step`` is the checkpoint that the message's step began with. Errors: TaskCancelled; those
        of `TaskContext.emit`, for this or an earlier event.
        """
        chunk, metadata = event
        if not isinstance(chunk, AIMessageChunk) or not chunk.id:
            return False
        about = cast("dict[str, Any]", metadata)
        within = str(about.get("langgraph_checkpoint_ns", ""))
        place = [step, *namespace, within, chunk.id]
        entry = f"text:graph/{_digest(_hashed(codec.encode(place)))}"
        found = _only_text(chunk, metadata)
        message = self._messages.get(entry)
        if found is None:
            if message is not None and chunk.chunk_position == "last":
                await self._end(entry)
            return False
        if message is None:
            digest, length, _ = self._known.get(entry, ("", 0, False))
            tasks = within.split("|")
            message = self._messages[entry] = _Message(namespace, tasks, found, digest, length)
        elif message.first.around != found.around:
            await self._open.end(entry)
            message.first = found
        await self._write(entry, message.hold(found.text))
        return True

    async def publish_before(self, namespace: tuple[str, ...], mode: str, event: Any) -> None:
        """Publish what was added before an event. Errors: those of `TaskContext.emit`."""
        for entry, message in self._messages.items():
            if message.has_ended(namespace, mode, event):
                await self._end(entry)
            else:
                await self._open.flush(entry)

    async def end(self, namespace: tuple[str, ...]) -> None:
        """End the messages of a graph at the end of its step, and those within that step."""
        depth = len(namespace)
        for entry, message in list(self._messages.items()):
            if message.namespace[:depth] == namespace:
                await self._end(entry)
                del self._messages[entry]

    async def publish(
        self, entry: str, kind: UpdateType, content: dict[str, Any], *, ended: bool
    ) -> None:
        """Publish a row of a message, and note in the journal how far it is. Errors: LeaseLost."""
        message, text = self._messages[entry], str(content["text"])
        row = message.first.event(message.namespace, text)
        if message.resets:
            row["reset"] = True
        self.store.base.payloads.check_size("content", len(codec.encode(row)))
        message.hashed.update(_bytes(text))
        message.published += len(text)
        message.resets = False
        note = (_digest(message.hashed), message.published, ended)
        # Not by its note: a text that is published again has rows of its own.
        row_id = (content["generation"], content["part"])
        await self.append(entry, kind, row, note, row_id=row_id)

    async def _end(self, entry: str) -> None:
        """Publish all of a message: what was held of it is its whole text."""
        await self._write(entry, self._messages[entry].hold("", ended=True))
        await self._open.end(entry)

    async def _write(self, entry: str, text: str) -> None:
        if not text:
            return
        if entry not in self._open:
            rehearses = self.started.replay.rehearsal is not None
            writer = _MessageWriter(
                self, entry, UpdateType.PROGRESS, JOIN_MS / 1000, JOIN_BYTES, swallows=rehearses
            )
            await self._open.begin(entry, writer)
        await self._open.write(entry, text)


class _MessageWriter(TextWriter):
    """Writes the text of a message, whose end is no row of its own."""

    async def _send_row(self, text: str, *, ended: bool) -> None:
        if text:
            await super()._send_row(text, ended=ended)


def _only_text(chunk: AIMessageChunk, metadata: Any) -> _Chunk | None:
    """Return a chunk that can be joined with others, or None."""
    more = (
        chunk.tool_call_chunks
        or chunk.tool_calls
        or chunk.invalid_tool_calls
        or chunk.usage_metadata
        or chunk.additional_kwargs
        or chunk.chunk_position
        or chunk.__pydantic_extra__
    )
    content: Any = chunk.content
    block: Any = None
    if not isinstance(content, str):
        only: Any = content[0] if len(content) == 1 else None
        if not isinstance(only, dict):
            return None
        found = cast("dict[str, Any]", only)
        if not _BLOCK.issuperset(found):
            return None
        content = found.get("text") if found.get("type") == "text" else None
        block = {name: value for name, value in found.items() if name != "text"}
    if more or not content or not isinstance(content, str):
        return None
    around = (chunk.name, chunk.response_metadata, block, metadata)
    return _Chunk(content, around, chunk, metadata)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hashed(text: str | bytes) -> Any:
    return hashlib.sha256(_bytes(text) if isinstance(text, str) else text)


def _digest(hashed: Any) -> str:
    return str(hashed.hexdigest())[:32]
