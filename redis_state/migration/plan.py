"""What a migration would move, and what stands in its way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from redis_state.doctor import Finding, Verdict, examine
from redis_state.migration.namespace import ServerNamespace

_CLOCK_MS = 1_000
# A target may have a part of what is copied: these say nothing of it.
_OF_CONTENT = ("queue", "jobs", "tasks")


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be moved: keys by their kind; what is at the target already; what was found."""

    source: str
    target: str
    keys: int
    kinds: dict[str, int]
    target_keys: int
    findings: list[Finding]


async def make_plan(source: ServerNamespace, target: ServerNamespace) -> Plan:
    """Look at both servers. Errors: NoConnection."""
    kinds = Counter[str]()
    async for page in source.names():
        kinds.update(_kind_of(name) for name in page)
    there = 0
    async for page in target.names():
        there += len(page)
    return Plan(
        str(source),
        str(target),
        kinds.total(),
        dict(kinds.most_common()),
        there,
        [
            *[found async for found in _compared(source, target)],
            *[each for each in await examine(source.settings) if each.question == "queue"],
            *[each for each in await examine(target.settings) if each.question not in _OF_CONTENT],
        ],
    )


def _kind_of(name: str) -> str:
    return name.rpartition("}:")[2].partition(":")[0]


async def _compared(source: ServerNamespace, target: ServerNamespace) -> AsyncGenerator[Finding]:
    ahead_ms = await target.clock_ms() - await source.clock_ms()
    if abs(ahead_ms) > _CLOCK_MS:
        yield Finding(
            str(target),
            "clocks",
            Verdict.FINDING,
            f"its clock is {ahead_ms / 1000:+.1f} s from the source's",
            "times that are kept, of leases and schedules, come so much too early or too late",
            "let NTP set both clocks",
        )
    here, there = await source.info(), await target.info()
    most, used = int(there.get("maxmemory", 0)), int(there.get("used_memory", 0))
    needed = int(here.get("used_memory", 0))
    if most and most - used < needed:
        yield Finding(
            str(target),
            "room",
            Verdict.FINDING,
            f"it has room for {most - used:,} bytes, the source uses {needed:,}",
            "if this namespace is most of it, copying ends as StoreFull",
            "raise maxmemory",
        )
