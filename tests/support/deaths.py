"""How often a sweep over points of death killed something. A run shows it in the end.

A sweep compares all after each death, so one that passes has lost nothing, and has nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.support.servers.faults import run_processes

# What a sweep records of itself, with pytest's `record_property`.
DEATHS = "deaths"
Recorder = Callable[[str, object], None]


def counted(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """Yield a line for each sweep that has recorded its deaths: whether it passed, and how many."""
    for report in reports:
        for name, count in report.user_properties:
            if name == DEATHS and report.when == "call":
                yield f"{count:>6} deaths, {report.outcome}: {report.nodeid}"


async def sweep(
    program: str,
    argument: Mapping[str, Any],
    *,
    stride: int,
    record: Recorder,
    of_edge: Callable[[str], Mapping[str, Any]] = lambda _: {},
) -> list[Any]:
    """Let a program die before, and after, each ``stride``-th round trip; return the deaths.

    Every death must leave no problem. Each edge has a process of its own, which gets ``argument``
    and what is of its edge.
    """
    arguments = [
        {
            **argument,
            **of_edge(edge),
            "edge": edge,
            "stride": stride,
            "first": max(1, (1 + 2 * number) * stride // 4),
        }
        for number, edge in enumerate(("before", "after"))
    ]
    found = await run_processes(program, arguments, timeout_s=3500)
    deaths = [death for results in found for death in results]
    record(DEATHS, len(deaths))
    assert [death for death in deaths if death["problems"]] == []
    assert all(results for results in found)
    return deaths
