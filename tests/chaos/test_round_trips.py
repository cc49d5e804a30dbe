"""A process dies before, and another after, every round trip that moves a task."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from tests.chaos.support.crew import worst
from tests.chaos.support.trial import How, Trial
from tests.processes.deaths.die_at_round_trip import LEASE_S, PHASES
from tests.support.servers.faults import run_processes

_EDGES = ("before", "after")
# What must be among the places of death: one script for each kind of move.
_MOVES = {
    "submit": {"index_task", "create_task", "the queue"},
    "begin": {"start_task", "record_step", "open_pause", "pause_task"},
    "resolve": {"decide_pause", "the queue"},
    "end": {"start_task", "record_step", "move_task", "index_task"},
    "retry": {"watch_entry", "retry_task", "index_task", "the queue"},
}


async def test_processes_die_at_each_round_trip(
    trial: Trial, settings: Settings, tmp_path: Path
) -> None:
    stride = 1 if trial.size.full else 8
    trial.parameters = {"edges": list(_EDGES), "every": stride, "lease_s": LEASE_S}
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "folder": str(tmp_path),
        "stride": stride,
    }
    arguments = [
        argument | {"edge": edge, "first": 1 + number * stride // 2}
        for number, edge in enumerate(_EDGES)
    ]
    found = await run_processes("die_at_round_trip", arguments, timeout_s=500)
    places: dict[str, set[str]] = defaultdict(set)
    deaths: dict[str, int] = defaultdict(int)
    for each in (each for results in found for each in results):
        trial.faults += 1
        places[each["phase"]].add(each["trip"])
        deaths[each["phase"]] += 1
        where = f"{each['phase']}, {each['edge']} {each['trip']} ({each['at']})"
        how: How = "unknown" if each["problems"] else "ok"
        trial.lost += bool(each["problems"])
        trial.history.note(where, how, each["began"], each["ended"])
        trial.expect(not each["problems"], f"{where}: {each['problems']}")
    for phase in PHASES:
        missed = _MOVES[phase] - places[phase] if trial.size.full else set[str]()
        trial.expect(not missed and deaths[phase], f"nobody died in {phase} at {sorted(missed)}")
    took_s = [ended - began for _, _, began, ended in trial.history.events]
    trial.figures = {"deaths": dict(deaths), "whole_again": worst(took_s)} | {
        phase: sorted(places[phase]) for phase in PHASES if trial.size.full
    }
    trial.conclude()
