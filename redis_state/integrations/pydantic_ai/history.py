"""The messages of a session with an agent, with which the session's next task continues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.run import AgentRunResult

from redis_state.errors import VersionConflict
from redis_state.integrations.pydantic_ai.identity import part
from redis_state.models.version import Version
from redis_state.worker import TaskContext

MOST_MESSAGES = 1_000
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
        return f"pydantic_ai:{part(self._agent)}:{session_id}"

    async def load(self, ctx: TaskContext) -> Loaded:
        """Return what was there when the task first came here."""

        async def read() -> dict[str, Any]:
            document = await ctx.store.load_memory_state(self.key(ctx.task.session_id)) or {}
            tasks = document.get("tasks") or [None]
            return {"messages": document.get("messages", []), "last": tasks[-1]}

        found = await ctx.step("load the history", read)
        return Loaded(ModelMessagesTypeAdapter.validate_python(found["messages"]), found["last"])

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
        store, key, task_id = ctx.store, self.key(ctx.task.session_id), ctx.task.task_id
        while True:
            document, version = await store.load_memory(key) or ({}, cast("Version", 0))
            tasks: list[str] = document.get("tasks", [])
            if task_id in tasks:
                return
            unchanged = before is None or before.last == (tasks[-1] if tasks else None)
            if unchanged:
                messages = _plain(result.all_messages())
            else:
                messages = [*document["messages"], *_plain(result.new_messages())]
            kept = {
                "messages": newest_runs(messages, self._most),
                "tasks": [*tasks, task_id][-_MOST_TASKS:],
            }
            try:
                await store.save_memory_state(key, kept, expected_version=version)
            except VersionConflict:
                continue
            return


def newest_runs(messages: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the newest messages, whole runs of an agent: a tool's call stays with its result."""
    begins = 0
    while len(messages) - begins > most:
        run = messages[begins].get("run_id")
        end = begins + 1
        while end < len(messages) and messages[end].get("run_id") == run:
            end += 1
        if end == len(messages):
            break
        begins = end
    return messages[begins:]


def _plain(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
