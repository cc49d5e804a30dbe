"""Pause a real ReactPlanner and resume it from several places; what its tools do is in a file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from penguiflow.catalog import build_catalog, tool
from penguiflow.node import Node
from penguiflow.planner import PlannerFinish, PlannerPause, ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel

from redis_state.errors import LostRace
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.pauses import OncePlanner, resume_once
from redis_state.testing import eventually

CONTEXT = {"session_id": "session", "trace_id": "trace"}
BEFORE: list[dict[str, Any]] = [
    {"thought": "t", "next_node": "look_up", "args": {"text": "penguins"}},
    {"thought": "t", "next_node": "ask", "args": {"text": "go on?"}},
]
AFTER: list[dict[str, Any]] = [
    {"thought": "t", "next_node": "act", "args": {"text": "done"}},
    {"thought": "t", "next_node": None, "args": {"answer": "done"}},
]


class Words(BaseModel):
    """What a tool is asked and answers."""

    text: str


class Script:
    """A model that says what comes next, by how much of the plan the prompt shows."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = list(lines)

    async def complete(self, **_: Any) -> str:
        """Say the next line, and the last one for ever."""
        return json.dumps(self._lines.pop(0) if len(self._lines) > 1 else self._lines[0])


@tool(desc="look something up")
async def look_up(args: Words, ctx: ToolContext) -> Words:
    """Answer at once."""
    return Words(text=f"looked up {args.text}")


@tool(desc="ask a person")
async def ask(args: Words, ctx: ToolContext) -> Words:
    """Pause until a person has answered."""
    await ctx.pause("approval_required", {"question": args.text})
    return Words(text="never said here")


def make_planner(
    store: Any, effects: Path, lines: list[dict[str, Any]], kind: Any = ReactPlanner
) -> Any:
    """Make a planner whose tool ``act`` leaves a line in a file."""

    @tool(desc="do what cannot be undone")
    async def act(args: Words, ctx: ToolContext) -> Words:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return args

    registry = ModelRegistry()
    for name in ("look_up", "ask", "act"):
        registry.register(name, Words, Words)
    nodes = [Node(each, name=each.__name__) for each in (look_up, ask, act)]
    return kind(
        llm_client=Script(lines),
        catalog=build_catalog(nodes, registry),
        state_store=store,
        pause_enabled=True,
    )


def steps_of(done: PlannerFinish | PlannerPause) -> list[str]:
    """Name the tools of a finished plan."""
    assert isinstance(done, PlannerFinish), done
    steps: list[dict[str, Any]] = done.metadata["steps"]
    return [step["action"]["next_node"] for step in steps]


async def _pause(store: Any, planner: Any) -> str:
    paused = await planner.run("question", tool_context=CONTEXT)
    assert isinstance(paused, PlannerPause), paused
    await store.drain()
    token: str = paused.resume_token
    return token


async def _resume(store: Any, planner: Any, token: str, *, once: bool) -> list[str] | str:
    try:
        if once:
            done = await resume_once(planner, store, token, "yes", tool_context=CONTEXT)
        else:
            done = await planner.resume(token, "yes", tool_context=CONTEXT)
    except (LostRace, KeyError) as error:
        return type(error).__name__
    return steps_of(done)


async def main(argument: dict[str, Any]) -> Any:
    """Pause, or be given the token of a pause; then resume it when told, ``times`` times at once.

    ``how`` is "plain" for planner.resume, "once" for resume_once, "planner" for OncePlanner.
    """
    store: Any = create_store(url=argument["url"], namespace=argument["namespace"])
    how: str = argument["how"]
    kind = OncePlanner if how == "planner" else ReactPlanner
    token: str | None = argument.get("token")
    lines = AFTER if token else BEFORE + AFTER
    planner = make_planner(store, Path(argument["effects"]), lines, kind)
    try:
        if token is None:
            token = await _pause(store, planner)
        print(json.dumps(token), flush=True)  # noqa: T201

        async def reported() -> bool:
            return await store.load_memory_state(argument["go"]) is not None

        await eventually(reported, "the test says go", timeout_s=60)
        calls = [
            _resume(store, planner, token, once=how == "once") for _ in range(argument["times"])
        ]
        outcomes = await asyncio.gather(*calls)
        await store.drain()
        return {"pid": os.getpid(), "outcomes": outcomes}
    finally:
        await store.aclose()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
