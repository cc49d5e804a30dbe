"""Limits of an execution, looked at before each step: a signal says which one is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_state.agents.state.budget import ExecutionBudget
from redis_state.agents.state.inference import Usage
from redis_state.agents.state.stop_signals import StopReason, StopSignal
from redis_state.agents.state.wire.frozen import FrozenMap
from redis_state.agents.state.wire.kinds import write_moment

# The default limits of an execution, as in the original.
DEFAULT_BUDGET = ExecutionBudget(max_steps=20, max_tokens=32_768, max_seconds=300.0)

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What an execution has used so far."""

    steps: int
    usage: Usage
    seconds: float
    cost: float


def reached(budget: ExecutionBudget, spent: BudgetUse, *, at: datetime) -> StopSignal | None:
    """Return the first limit that leaves no room for another step: steps, tokens, time, cost.

    There is no reason for costs of its own: tokens are what they come from.
    """
    tokens, seconds = spent.usage.total, spent.seconds
    limits: list[tuple[float, float | None, StopReason, str, str, str]] = [
        (spent.steps, budget.max_steps, StopReason.STEPS_LIMIT, "step", "currentSteps", "maxSteps"),
        (
            tokens,
            budget.max_tokens,
            StopReason.TOKEN_LIMIT,
            "token",
            "totalTokens",
            "maxTotalTokens",
        ),
        (
            seconds,
            budget.max_seconds,
            StopReason.TIME_LIMIT,
            "time",
            "elapsedSeconds",
            "maxSeconds",
        ),
        (spent.cost, budget.max_cost, StopReason.TOKEN_LIMIT, "cost", "currentCost", "maxCost"),
    ]
    for used, limit, reason, name, key, key_of_limit in limits:
        if limit is not None and used >= limit:
            return _signal(reason, f"{name} limit reached", {key: used, key_of_limit: limit})
    if budget.deadline is not None and at >= budget.deadline:
        facts = {"deadline": write_moment(budget.deadline)}
        return _signal(StopReason.TIME_LIMIT, "deadline reached", facts)
    return None


def cost_of(usage: Usage, pricing: Mapping[str, Any]) -> float:
    """Reckon what tokens cost. ``pricing`` is for a million of a kind, under the kind's wire name
    or that with ``PerMToken``; what it does not name is free.
    """
    cost = 0.0
    for slot in usage.slots:
        price = pricing.get(slot.key, pricing.get(f"{slot.key}PerMToken"))
        if isinstance(price, (int, float)):
            cost += getattr(usage, slot.field) * price / _MILLION
    return cost


def _signal(reason: StopReason, message: str, facts: dict[str, Any]) -> StopSignal:
    return StopSignal(reason=reason, message=message, context=FrozenMap(facts), source="guard")
