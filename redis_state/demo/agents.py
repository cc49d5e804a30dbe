"""The demo's agent: it prepares an order, and ships it when a person approves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from redis_state.demo.flow import TICK, tick
from redis_state.worker import AgentWorker, TaskContext

PRICES = {"a kettle": 34, "two cups": 18, "green tea": 9, "a tray": 21}
TOTAL = sum(PRICES.values())


async def prepare_order(ctx: TaskContext) -> dict[str, Any]:
    """Price each item, wait for an approval, and ship.

    Each item is a step: the run that resumes the task, in another process, prices none again.
    """
    order: dict[str, Any] = ctx.input or {}
    pace_s = float(order.get("pace_s", 0.1))
    total = 0
    for number, item in enumerate(PRICES, start=1):
        await ctx.progress(f"price {item}", step=number, total=len(PRICES) + 1)
        total += await ctx.step(f"price {item}", _price, item, pace_s)
    decision = await ctx.approval(f"Ship the order for {total}?", {"total": total})
    notes = [event.payload.get("text") for event in ctx.inbox.take()]
    await ctx.progress("ship", step=len(PRICES) + 1, total=len(PRICES) + 1)
    return {"total": total, "approved": decision.approved, "notes": notes}


async def _price(item: str, pace_s: float) -> int:
    await asyncio.sleep(pace_s)
    return PRICES[item]


worker: AgentWorker = AgentWorker(
    {"prepare_order": prepare_order, TICK: tick}, max_tasks=2, grace_s=2.0
)
# Another worker reclaims its tasks a few seconds after its death.
mortal: AgentWorker = replace(worker, lease_s=3.0)
