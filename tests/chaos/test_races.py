"""Many who want one thing: one of them gets it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.serialization.rows import as_object
from tests.chaos.support.gate import all_arrive, open_gate
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import SESSION, statuses
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import run_processes
from tests.support.tasks.crash_states import paused, send

_CALLERS = 8
_CUT_EVERY_S = 0.5
_STAGGER_MS = 20
_SET_UP_MS = 500


async def test_tokens_have_one_winner_each(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    tokens = trial.size.of(10_000)
    processes = 8 if trial.size.full else 4
    trial.parameters = {
        "tokens": tokens,
        "consumers": processes * _CALLERS,
        "processes": processes,
        "connections_cut_every_s": _CUT_EVERY_S,
    }
    for number in range(tokens):
        saved = store.save_planner_state(f"token-{number}", {"token": f"token-{number}"})
        await saved
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "folder": str(tmp_path),
        "tokens": tokens,
        "callers": _CALLERS,
    }
    racing = asyncio.create_task(
        run_processes(
            "race_for_tokens",
            [argument | {"name": str(number)} for number in range(processes)],
            timeout_s=500,
        )
    )
    await all_arrive(tmp_path, processes, racing)
    open_gate(tmp_path, "go")
    # Who wins and never hears of it asks again, and has to be told so again.
    while not racing.done():
        trial.faults += await send(store, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.wait({racing}, timeout=_CUT_EVERY_S)
    wins = Counter[str]()
    for found in racing.result():
        wins.update(found["wins"])
        trial.history.merge(found["events"])
    trial.duplicated = sum(count > 1 for count in wins.values())
    trial.lost = tokens - len(wins)
    calls = tokens * processes * _CALLERS
    answered = trial.history.count("ok")
    trial.expect(answered == calls, f"{answered} of {calls} calls were answered")
    trial.figures = {"winners": len(wins), "losers": calls - sum(wins.values())}
    trial.conclude()


async def test_approval_rejection_and_expiry_come_in_the_same_millisecond(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    pauses = trial.size.of(1_000, least=50)
    trial.parameters = {"pauses": pauses, "processes": 3}
    tokens = dict([await paused(store) for _ in range(pauses)])
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "folder": str(tmp_path),
        "session": SESSION,
    }
    roles = ("approve", "reject", "expire")
    racing = asyncio.create_task(
        run_processes(
            "decide_at_deadline", [argument | {"role": role} for role in roles], timeout_s=120
        )
    )
    await all_arrive(tmp_path, len(roles), racing)
    open_gate(tmp_path, json.dumps(await _set_deadlines(store, tokens)))
    found = await racing
    for each in found:
        trial.history.merge(each["events"])
    by_role = dict(zip(roles, found, strict=True))
    together = [list(zip(*(each["came"][task] for each in found), strict=True)) for task in tokens]
    # The fault is the coincidence itself: all three were under way at one moment.
    trial.faults = sum(max(began) < min(ended) for began, ended in together)
    answered = sum(max(ended) - min(ended) < 0.001 for _, ended in together)
    trial.expect(answered or not trial.size.full, "never in one millisecond")
    made = Counter[str]()
    for task in tokens:
        actor = await _decided_by(store, task)
        made[actor] += 1
        winners = [role for role in ("approve", "reject") if task in by_role[role]["won"]]
        trial.lost += winners == [] and actor != "timeout"
        trial.duplicated += len(winners) > 1 or (winners not in ([], [actor]))
        resumed = (await statuses(store, task)).count("PENDING") - 1
        trial.expect(resumed == 1, f"{task} was resumed {resumed} times")
    trial.figures = {"decided_by": dict(sorted(made.items())), "answered_within_1_ms": answered}
    trial.conclude()


async def _set_deadlines(
    store: RedisStateStore, tokens: dict[str, str]
) -> list[tuple[str, str, int]]:
    first_ms = await clock_ms(store.base.scripts) + _SET_UP_MS + 2 * len(tokens)
    due: list[tuple[str, str, int]] = []
    for number, (task, token) in enumerate(tokens.items()):
        deadline_ms = first_ms + number * _STAGGER_MS
        key = store.base.keys.session_token(token)
        assert key is not None
        await send(store, "HSET", key, "expires", deadline_ms)
        due.append((task, token, deadline_ms))
    return due


async def _decided_by(store: RedisStateStore, task: str) -> str:
    journal = store.tasks.keys(SESSION, task).journal
    recorded: dict[str, Any] = as_object(await send(store, "HGET", journal, "pause:x#1"))
    assert recorded["state"] == "decided"
    return str(recorded["actor"])
