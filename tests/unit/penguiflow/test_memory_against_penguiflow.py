"""The same turns on the published memory and on ours: the same context and health at each step.

Where ours differs it does so on purpose, and each difference has a test of its own below or in
`test_memory_session`:

- a turn that the policy ``error`` refuses is not taken; a summary that it refuses is a failed one
  (upstream keeps both, over budget);
- ``truncate_summary`` shortens a summary that is within its own budget, for the total's sake
  (upstream loops for ever);
- turns that come while a summary is made are kept (upstream drops them);
- a failed summary is tried again by itself (upstream waits for the next turn or flush);
- a memory that was stored while recovering, or with a backlog and no degradation, recovers it.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from redis_state.errors import MemoryBudgetExceeded
from redis_state.memory import MemoryKey, SessionMemory

theirs = pytest.importorskip(
    "penguiflow.planner.memory", reason="compares with the published package"
)
with_planner = importlib.import_module("redis_state.integrations.penguiflow.memory")

KEY = MemoryKey("t", "u", "s")
ANSWERS = st.sampled_from(["ok", "ok", "long", "fail", "wrong"])
TURNS = st.tuples(st.integers(0, 60), st.booleans(), st.sampled_from([0.0, 5.0, 40.0]))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a configuration; a total of 0 is none, and small ones overflow."""
    total = draw(st.sampled_from([0, 5, 12, 40, 80, 200]))
    most = st.sampled_from([0, 1, total // 4, total or 50])
    return {
        "strategy": draw(st.sampled_from(["none", "truncation", *["rolling_summary"] * 4])),
        "budget": theirs.MemoryBudget(
            full_zone_turns=draw(st.integers(0, 3)),
            summary_max_tokens=draw(most),
            total_max_tokens=total,
            overflow_policy=draw(st.sampled_from(["truncate_summary", "truncate_oldest", "error"])),
        ),
        "include_trajectory_digest": draw(st.booleans()),
        "recovery_backlog_limit": draw(st.integers(1, 4)),
        "retry_attempts": draw(st.integers(0, 2)),
        "retry_backoff_base_s": 0.0,
    }


RESTORED = ("_turns", "_pending", "_backlog", "_summary")


class Hangs(Exception):
    """The published memory would loop for ever here."""


def published(config: Any, script: Any, now: Callable[[], float]) -> Any:
    """Make the published memory; it says so where it would loop for ever."""
    memory: Any = theirs.DefaultShortTermMemory(config=config, summarizer=script, time_source=now)
    enforce, truncate = memory._enforce_budget_locked, memory._truncate_summary_to_budget_locked
    enforcing: list[bool] = []

    def truncating() -> None:
        before = memory._summary
        truncate()
        if enforcing and memory._summary == before:
            raise Hangs

    def enforcing_budget() -> None:
        enforcing.append(True)
        try:
            enforce()
        finally:
            enforcing.pop()

    memory._enforce_budget_locked = enforcing_budget
    memory._truncate_summary_to_budget_locked = truncating
    return memory


def refuses(memory: Any, summary: str, turns: list[Any]) -> bool:
    """Tell whether a summary would break the published memory's budget under ``error``."""
    budget = memory._config.budget
    if budget.overflow_policy != "error":
        return False
    if budget.summary_max_tokens <= 0:
        summary = ""
    kept = (memory._summary, memory._pending, memory._health)
    memory._summary, memory._pending = summary, memory._pending[len(turns) :]
    memory._health = theirs.MemoryHealth.HEALTHY
    tokens: int = memory.estimate_tokens()
    memory._summary, memory._pending, memory._health = kept
    summary_tokens: int = theirs.default_token_estimator(summary) if summary else 0
    most: tuple[int, int] = (budget.total_max_tokens, budget.summary_max_tokens)
    return 0 < most[0] < tokens or summary_tokens > most[1]


class Script:
    """A summarizer that answers as it is told, and then always well. It notes what it is asked."""

    def __init__(self, answers: list[str], *, own: bool) -> None:
        self.own = own
        self.requested: list[Any] = []
        self.memory: Any = None
        self._answers = iter(answers)

    async def __call__(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer."""
        self.requested.append((payload, self.memory.health.value))
        await asyncio.sleep(0)
        kind = next(self._answers, "ok")
        if kind == "fail":
            raise RuntimeError("scripted")
        if kind == "wrong":
            return {"summary": 7}
        numbers = [turn["user"].split()[0] for turn in payload["turns"]]
        summary = payload["previous_summary"][-40:] + "+".join(numbers)
        if kind == "long":
            summary += "." * 300
        if not self.own and refuses(self.memory, summary, payload["turns"]):
            raise RuntimeError("over budget")
        return {"summary": summary}


@dataclass
class Side:
    """One of the two memories, with what it said."""

    memory: Any
    script: Script
    healths: list[tuple[str, str]]

    async def step(self, turn: Any) -> str | None:
        """Add a turn and wait for what follows; name the error."""
        fields: dict[str, Any] = self.memory.__dict__
        before = {name: copy.copy(fields[name]) for name in RESTORED if name in fields}
        try:
            await self.memory.add_turn(turn)
        except (MemoryBudgetExceeded, theirs.MemoryBudgetExceeded):
            if not self.script.own:
                fields.update(before)
            return "MemoryBudgetExceeded"
        await self.memory.flush()
        for _ in range(5):
            await asyncio.sleep(0)
        return None

    async def shown(self) -> Any:
        """Return all that can be seen."""
        state = self.memory.to_dict()
        turns = [
            [{k: v for k, v in turn.items() if k != "id"} for turn in state[name]]
            for name in ("turns", "pending", "backlog")
        ]
        return (
            await self.memory.get_llm_context(),
            self.memory.health.value,
            self.memory.estimate_tokens(),
            state["summary"],
            turns,
            self.healths,
            self.script.requested,
        )


def side(options: dict[str, Any], answers: list[str], clock: list[float], *, own: bool) -> Side:
    script, healths = Script(answers, own=own), list[tuple[str, str]]()

    async def changed(old: Any, new: Any) -> None:
        healths.append((old.value, new.value))

    config = theirs.ShortTermMemoryConfig(on_health_changed=changed, **options)

    def now() -> float:
        return clock[0]

    memory: Any
    if own:
        memory = SessionMemory(
            None, KEY, config=config, summarizer=script, time_source=now, types=with_planner.TYPES
        )
    else:
        memory = published(config, script, now)
    script.memory = memory
    return Side(memory, script, healths)


def a_turn(number: int, size: int, *, digest: bool) -> Any:
    return theirs.ConversationTurn(
        user_message=f"{number} " + "x" * size,
        assistant_response="é" * (size // 2),
        trajectory_digest=theirs.TrajectoryDigest(["tool"], "seen", None, ["ref"])
        if digest
        else None,
        artifacts_shown={"a": [size]},
        ts=float(number),
    )


@pytest.mark.fuzz
def test_both_memories_show_the_same_at_each_step() -> None:
    happened: Counter[str] = Counter()

    @settings(max_examples=10 * settings().max_examples)
    @given(configs(), st.lists(TURNS, max_size=12), st.lists(ANSWERS, max_size=15))
    def compare(options: dict[str, Any], steps: list[Any], answers: list[str]) -> None:
        happened.update(asyncio.run(play(options, steps, answers)))

    for _ in range(40):
        seed(random.getrandbits(64))(compare)()
        if set(happened) >= HAPPENS:
            break
    assert set(happened) >= HAPPENS, f"never happened: {HAPPENS - set(happened)}"


async def test_a_refused_turn_is_no_occasion_to_recover_a_degraded_memory() -> None:
    # Found by the comparison above: the summary's budget is 0, the third turn is too long, and
    # of two failed answers the second is the recovery's.
    budget = theirs.MemoryBudget(
        full_zone_turns=1, summary_max_tokens=0, total_max_tokens=40, overflow_policy="error"
    )
    options: dict[str, Any] = {
        "strategy": "rolling_summary",
        "budget": budget,
        "recovery_backlog_limit": 1,
        "retry_attempts": 0,
        "retry_backoff_base_s": 0.0,
    }
    steps = [(0, False, 0.0), (0, False, 0.0), (0, True, 0.0), (0, False, 40.0), (0, False, 0.0)]
    happened = await play(options, steps, ["fail", "fail"])
    assert happened == {
        "refused",
        "healthy -> degraded",
        "degraded -> recovering",
        "recovering -> degraded",
        "rolling_summary degraded",
    }


HAPPENS = {
    *("none healthy", "truncation healthy", "rolling_summary healthy", "rolling_summary degraded"),
    *("refused", "hangs", "healthy -> retry", "retry -> healthy", "retry -> degraded"),
    *("healthy -> degraded", "degraded -> recovering", "recovering -> healthy"),
    "recovering -> degraded",
}


async def play(
    options: dict[str, Any], steps: list[tuple[int, bool, float]], answers: list[str]
) -> set[str]:
    """Give both memories the same turns and answers; tell what happened."""
    clock, happened = [100.0], set[str]()
    ours = side(options, answers, clock, own=True)
    other = side(options, answers, clock, own=False)
    for number, (size, digest, later) in enumerate(steps):
        clock[0] += later
        turn = a_turn(number, size, digest=digest)
        refused = await ours.step(turn)
        try:
            assert refused == await other.step(turn)
        except Hangs:
            assert ours.memory.estimate_tokens() <= options["budget"].total_max_tokens or (
                await ours.memory.get_llm_context() == NOTHING
            )
            return {"hangs"}
        happened |= {"refused"} if refused else set[str]()
        assert await ours.shown() == await other.shown()
    await ours.memory.aclose()
    happened |= {f"{old} -> {new}" for old, new in ours.healths}
    return happened | {f"{options['strategy']} {ours.memory.health.value}"}


NOTHING: dict[str, Any] = {"conversation_memory": {"recent_turns": []}}
