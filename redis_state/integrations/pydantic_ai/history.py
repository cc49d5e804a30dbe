"""The messages of a session with an agent, with which the session's next task continues."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    repair_messages,
)
from pydantic_ai.run import AgentRunResult

from redis_state.errors import VersionConflict
from redis_state.integrations.agent_runs.scopes import named_once, part
from redis_state.memory.keys import agent_messages
from redis_state.models.version import Version
from redis_state.serialization import codec
from redis_state.worker import TaskContext

log: logging.Logger = logging.getLogger(__name__)

MOST_MESSAGES = 1_000
# As JSON. Each task records what it continues with, which is a payload and has its limit.
MOST_BYTES = 8 * 1024 * 1024
# Tasks whose messages are known to be there: a save that is repeated saves nothing.
_MOST_TASKS = 1_000


@dataclass(frozen=True)
class Loaded:
    """The messages before a task, and the last of the tasks that they are of."""

    messages: list[ModelMessage] = field(repr=False)
    last: str | None


class History:
    """The messages of an agent's sessions, in memory states: one document for each session."""

    def __init__(self, agent: str, most: int) -> None:
        self._agent = agent
        self._most = most

    def key(self, session_id: str) -> str:
        """Return the key of a session's memory state."""
        # No "/" is in a part: the name of an agent may end like the id of a session begins.
        return agent_messages(part(self._agent), session_id)

    async def load(self, ctx: TaskContext) -> Loaded:
        """Return what was there when the task first came here."""

        async def read() -> dict[str, Any]:
            document = await ctx.store.load_memory_state(self.key(ctx.task.session_id)) or {}
            tasks = document.get("tasks") or [None]
            return {"messages": self._opened(ctx, document), "last": tasks[-1]}

        found = await ctx.step("load the history", read)
        messages = ModelMessagesTypeAdapter.validate_python(found["messages"])
        if messages and isinstance(last := messages[-1], ModelResponse) and last.tool_calls:
            # The task before has ended with calls that others answer: no prompt may follow them.
            messages = repair_messages(messages)
        return Loaded(messages, found["last"])

    async def save(
        self, ctx: TaskContext, before: Loaded | None, result: AgentRunResult[Any]
    ) -> None:
        """Add a task's messages, once. What another task has added meanwhile stays before them.

        A run that began with messages of its own replaces what is there.
        """
        await ctx.step("save the history", self._save, ctx, before, result)

    async def _save(
        self, ctx: TaskContext, before: Loaded | None, result: AgentRunResult[Any]
    ) -> None:
        store, key, task = ctx.store, self.key(ctx.task.session_id), named_once(ctx)
        while True:
            document, version = await store.load_memory(key) or ({}, cast("Version", 0))
            tasks: list[str] = document.get("tasks", [])
            if task in tasks:
                return
            unchanged = before is None or before.last == (tasks[-1] if tasks else None)
            if unchanged:
                messages = _plain(result.all_messages())
            else:
                # What was deleted meanwhile, or has expired, stays away.
                earlier = self._opened(ctx, document)
                messages = [*earlier, *_plain(result.new_messages())]
            kept = {
                "messages": self._sealed(ctx, messages),
                "tasks": [*tasks, task][-_MOST_TASKS:],
            }
            try:
                await store.save_memory_state(key, kept, expected_version=version)
            except VersionConflict:
                continue
            return

    def _sealed(self, ctx: TaskContext, messages: list[dict[str, Any]]) -> Any:
        """Write messages: as they are, or as a text if the store has keys for payloads."""
        payloads = ctx.store.base.payloads
        most_bytes = min(MOST_BYTES, ctx.store.settings.max_payload_bytes // 2)
        kept = newest_runs(messages, self._most, most_bytes)
        if messages and not kept:
            log.warning(
                "agent %r forgets all messages of session %r: those of its last run have more than "
                "%d bytes",
                self._agent,
                ctx.task.session_id,
                most_bytes,
            )
        if not payloads.seals:
            return kept
        return b64encode(payloads.seal(codec.encode(kept))).decode()

    def _opened(self, ctx: TaskContext, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Read messages. Errors: PayloadUnreadable, which hands the task back."""
        found = document.get("messages", [])
        if isinstance(found, str):
            of = f"the history of agent {self._agent!r}"
            data = ctx.store.base.payloads.open(b64decode(found), of=of, field="messages")
            found = codec.decode(data)
        return cast("list[dict[str, Any]]", found)


def newest_runs(
    messages: list[dict[str, Any]], most: int, most_bytes: int = MOST_BYTES
) -> list[dict[str, Any]]:
    """Return the newest messages, whole runs of an agent: a tool's call stays with its result.

    The newest run is kept whatever the number of its messages, unless it has too many bytes. The
    system prompts at the front are kept: pydantic-ai adds none to messages that are there.
    """
    first: list[dict[str, Any]] = messages[0].get("parts", []) if messages else []
    prompts = [part for part in first if part.get("part_kind") == "system-prompt"]
    begins, sizes = 0, [len(codec.encode(message)) for message in messages]
    size = sum(sizes)
    while begins < len(messages) and (len(messages) - begins > most or size > most_bytes):
        run = messages[begins].get("run_id")
        end = begins + 1
        while end < len(messages) and messages[end].get("run_id") == run:
            end += 1
        if end == len(messages) and size <= most_bytes:
            break
        size -= sum(sizes[begins:end])
        if not begins and prompts:
            size += len(codec.encode(prompts))
        begins = end
    kept = messages[begins:]
    if begins and prompts and kept:
        is_request = kept[0].get("kind") == "request"
        own: dict[str, Any] = kept.pop(0) if is_request else {"kind": "request", "parts": []}
        kept.insert(0, {**own, "parts": [*prompts, *own["parts"]]})
    return kept


def _plain(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
