"""Forms that several processes fill in at once, while the workers that asked are killed."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import recorded
from tests.processes.callers.fill_forms import WRONG
from tests.support.processes.pools import SESSION, becomes, client_of, queue_of, statuses
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.faults import run_processes

pytestmark = pytest.mark.worker

_FILLERS = 3


async def filled(store: RedisStateStore, tokens: list[str], *, right: bool) -> list[dict[str, Any]]:
    """Let several processes fill in the forms at once."""
    arguments = [
        {
            "url": store.settings.url.get_secret_value(),
            "namespace": store.settings.namespace,
            "queue": queue_of(store.settings),
            "name": f"filler {number}",
            "tokens": tokens,
            "right": right,
        }
        for number in range(_FILLERS)
    ]
    return await run_processes("fill_forms", arguments)


async def open_forms(client: TaskClient, many: int) -> dict[str, str]:
    """Wait for the tasks' pauses; return the public id of each task's."""

    async def found() -> dict[str, str] | None:
        pauses = await client.pauses(SESSION)
        return {p.task_id: str(p.pause_id) for p in pauses} if len(pauses) == many else None

    forms = await eventually(found, f"{many} forms are open")
    assert forms is not None
    return forms


async def test_of_many_processes_one_valid_value_wins_though_the_worker_was_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"program": "form_worker", "folder": str(tmp_path), "lease_s": 0.5}
    async with client_of(store) as client:
        async with worker_process(store.settings, "one", **options) as one:
            # Some are paused when their worker dies, and some run beside their open forms.
            paused = [await client.submit("order", session_id=SESSION) for _ in range(3)]
            running = [await client.submit("order", "work on", session_id=SESSION) for _ in "ab"]
            for task in paused:
                await becomes(client, task, TaskStatus.PAUSED)

            def all_work_on() -> bool:
                return [line[0] for line in recorded(tmp_path, "orders")].count("works on") == 2

            await eventually(all_work_on, "they work beside their forms")
            forms = await open_forms(client, 5)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        tokens = list(forms.values())
        for each in await filled(store, tokens, right=False):
            assert (each["won"], each["lost"], each["late"]) == ({}, {}, 0)
            assert len(each["refused"]) == len(WRONG) * len(tokens)
            assert "secret" not in "".join(each["refused"])
        # What is refused leaves no trace: all forms are as open as before.
        assert await open_forms(client, 5) == forms
        results = await filled(store, tokens, right=True)
        winners = _winners(results, tokens)
        assert await client.pauses(SESSION) == []
        async with worker_process(store.settings, "two", **options):
            for task, token in forms.items():
                assert await client.result(SESSION, task, timeout_s=60) == winners[token]
                # Paused once: the decision that came while nobody ran it was not waited for.
                runs = (await statuses(store, task)).count("PAUSED")
                assert runs == (task in paused)
    done = [(what, task) for what, task, *_ in recorded(tmp_path, "orders")]
    wanted = [(what, task) for task in forms for what in ("prepare", "buy")]
    wanted += [("works on", task) for task in running]
    assert Counter(done) == Counter(wanted)
    bought = {task: more[0] for what, task, *more in recorded(tmp_path, "orders") if what == "buy"}
    assert bought == {task: winners[token][1] for task, token in forms.items()}


def _winners(results: list[dict[str, Any]], tokens: list[str]) -> dict[str, Any]:
    """Return who won each form with what; all others were told the same."""
    won = [item for each in results for item in each["won"].items()]
    assert sorted(token for token, _ in won) == sorted(tokens)
    winners = dict(won)
    for each in results:
        assert all(winners[token] == by for token, by in each["lost"].items())
        # A wrong value never wins; that the form is filled in already may be told in its place.
        assert len(each["refused"]) + each["late"] == len(WRONG) * len(tokens)
    assert sum(len(each["lost"]) for each in results) == (_FILLERS - 1) * len(tokens)
    return winners
