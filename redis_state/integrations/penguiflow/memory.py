"""PenguiFlow's short-term memory in the state store: shared by all planners of a session.

memory = create_memory(config, summarizer=summarizer_of(client))
planner = ReactPlanner(..., state_store=create_store(), short_term_memory=memory)
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from penguiflow.planner import ReactPlanner, prompts
from penguiflow.planner.memory import MemoryBudgetExceeded as TheirMemoryBudgetExceeded
from penguiflow.planner.memory import MemoryHealth, ShortTermMemoryConfig

from redis_state.errors import BackendError, MemoryBudgetExceeded
from redis_state.integrations.penguiflow.adapter.private_names import (
    give_memory,
    memory_of,
    planned_memory,
    save_memory,
)
from redis_state.memory import MemoryTypes, PlannerMemory, turns_named
from redis_state.memory.types import Summarizer
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"summary": {"type": "string"}},
    "required": ["summary"],
    "additionalProperties": False,
}


class BudgetExceeded(MemoryBudgetExceeded, TheirMemoryBudgetExceeded):  # type: ignore[misc]
    """Ours and PenguiFlow's, so that either can be caught."""


TYPES: MemoryTypes = MemoryTypes(health=MemoryHealth, budget_exceeded=BudgetExceeded)


def create_memory(
    config: ShortTermMemoryConfig, *, summarizer: Summarizer | None = None, **options: Any
) -> PlannerMemory:
    """Make a planner's short-term memory from PenguiFlow's configuration.

    Options are those of `PlannerMemory`. Errors: InvalidField for ``rolling_summary`` without a
    summarizer: a planner makes one for its own memory only; see `summarizer_of`.
    """
    return PlannerMemory(config, summarizer=summarizer, types=TYPES, **options)


def summarizer_of(client: Any) -> Summarizer:
    """Make a summarizer that asks a planner's model client, as PenguiFlow's own does.

    ``client`` has ``complete(messages=, response_format=)``.
    """

    async def summarize(payload: Mapping[str, Any]) -> Mapping[str, Any]:
        turns: Sequence[Mapping[str, Any]] = payload["turns"]
        messages = prompts.build_short_term_memory_summary_messages(
            previous_summary=payload["previous_summary"], turns=turns
        )
        schema = {"name": "short_term_memory_summary", "schema": _SCHEMA}
        answer: str | tuple[str, float] = await client.complete(
            messages=messages, response_format={"type": "json_schema", "json_schema": schema}
        )
        return {"summary": _summary(answer if isinstance(answer, str) else answer[0])}

    return summarize


def memory_key_of(planner: ReactPlanner, tool_context: Mapping[str, Any]) -> Any:
    """Return the `MemoryKey` of a run if the planner has a memory of ours, else None.

    Without it a planner joins the names unescaped, and a name with a colon has no memory.
    """
    memory = memory_of(planner)
    return memory.resolve_key(tool_context) if isinstance(memory, PlannerMemory) else None


@asynccontextmanager
async def remembering(
    planner: ReactPlanner,
    store: Any,
    *,
    name: str,
    summary_s: float,
    tool_context: Mapping[str, Any],
) -> AsyncGenerator[None]:
    """Run a planner in this block, before its store is closed: what it remembers is saved.

    PenguiFlow ends a run when its turn is saved; the summary is only begun then. It is waited for
    ``summary_s``, after a failure not at all. A run of the same ``name`` adds its turn once. A
    planner with a memory configuration gets a memory of ours for it: the memories that PenguiFlow
    makes overwrite each other's turns. A memory object of another kind is flushed and saved.
    """
    planned = planned_memory(planner)
    if planned is not None:
        config, summarizer = planned
        give_memory(planner, create_memory(config, summarizer=summarizer))
    memory = memory_of(planner)
    if not isinstance(memory, PlannerMemory):
        yield
        if memory is not None:
            _warn_of(type(memory).__name__)
            with suppress(TimeoutError):
                async with timeout(summary_s):
                    await memory.flush()
            await save_memory(planner, memory, tool_context)
        return
    with turns_named(name):
        try:
            yield
        except BaseException:
            with suppress(BackendError):
                await memory.leave(store, timeout_s=0)
            raise
        await memory.leave(store, timeout_s=summary_s)


@cache
def _warn_of(kind: str) -> None:
    log.warning("a %s overwrites what other tasks of its session save: use create_memory", kind)


def _summary(text: str) -> str:
    """Read a model's answer, whatever stands around its JSON. Errors: ValueError, KeyError."""
    summary = str(json.loads(text[text.find("{") : text.rfind("}") + 1])["summary"]).strip()
    if "<session_summary>" in summary:
        return summary
    inner = f"\n{summary}\n" if summary else ""
    return f"<session_summary>{inner}</session_summary>"


__all__ = [
    "TYPES",
    "BudgetExceeded",
    "create_memory",
    "memory_key_of",
    "remembering",
    "summarizer_of",
]
