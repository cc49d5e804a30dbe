"""A server that is killed under load, and comes back with what it had written to its file.

Or with what a power cut leaves of its file: what was synced.
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, StatusRow, ends, statuses_of, trails, worst, wrong_move
from tests.chaos.support.forgetting import MAY_FORGET_S, Acknowledged, Kill, lost
from tests.chaos.support.power import compiler, power
from tests.chaos.support.server import Server
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import SESSION, client_of
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import short_directory

_WORKERS = 2
_CALLERS = 4
_PAUSE_S = 3.5
_ROWS_PER_SESSION = 5_000
_SUBMIT_EVERY_S = 0.1
# In the full size one append follows the other.
_APPEND_EVERY_S = 0.003
_AGAIN_S = 2.0
_ALL_FROM = 0.1


class Load:
    """Callers who each write one thing after the other, and remember when it was acknowledged."""

    def __init__(self, trial: Trial, store: RedisStateStore, client: TaskClient) -> None:
        self.store = store
        self.tasks: dict[str, float] = {}
        self._rows: defaultdict[int, dict[tuple[str, int], float]] = defaultdict(dict)
        self._trial = trial
        self._client = client

    async def append(self, caller: int) -> None:
        """Append rows for ever."""
        for number in count():
            session = f"{caller}-{number // _ROWS_PER_SESSION}"
            update = StateUpdate(
                session_id=session,
                task_id="t",
                trace_id=None,
                update_type=UpdateType.PROGRESS,
                content=number,
            )
            with self._trial.history.doing("append"):
                await self.store.save_update(update)
                self._rows[caller][session, number] = time.monotonic()
            await asyncio.sleep(0 if self._trial.size.full else _APPEND_EVERY_S)

    async def submit(self) -> None:
        """Submit tasks for ever."""
        while True:
            with self._trial.history.doing("submit"):
                task = await self._client.submit("work", session_id=SESSION)
                self.tasks[task] = time.monotonic()
            await asyncio.sleep(_SUBMIT_EVERY_S)

    async def rows(self) -> tuple[list[list[Acknowledged]], int]:
        """Look what became of each caller's rows; count those that are there twice."""
        found = Counter[tuple[str, int]]()
        for session in {session for rows in self._rows.values() for session, _ in rows}:
            cursor: str | None = None
            at_end = False
            while not at_end:
                page = await self.store.read_updates(session, after=cursor)
                found.update((session, update.content) for update in page.values)
                cursor, at_end = page.cursor, page.at_end
        became = [
            [Acknowledged(at, row in found) for row, at in rows.items()]
            for rows in self._rows.values()
        ]
        return became, sum(times > 1 for times in found.values())


@pytest.mark.parametrize("appendfsync", MAY_FORGET_S)
@pytest.mark.parametrize("fault", ["killed", "power cut"])
async def test_the_server_is_killed_under_load(
    fault: str, appendfsync: str, trial: Trial, settings: Settings, tmp_path: Path
) -> None:
    if fault == "power cut" and compiler() is None:
        pytest.skip("needs a C compiler, to know what a server has synced")
    weaker = (fault, appendfsync) in (("killed", "always"), ("power cut", "everysec"))
    if weaker and trial.size.factor < _ALL_FROM:
        pytest.skip("make chaos: the other two promise more")
    trial.parameters = {
        "fault": fault,
        "kills": trial.size.of(20, least=2),
        "workers": _WORKERS,
        "callers": trial.size.of(_CALLERS, least=2),
        "appendfsync": appendfsync,
    }
    with short_directory() as directory:
        server = Server(directory, appendfsync, power(directory) if fault == "power cut" else None)
        server.start()
        own = settings.model_copy(
            update={
                "url": SecretStr(server.url),
                "guarantee": "durable" if appendfsync == "always" else "fast",
            }
        )
        try:
            await eventually(server.answers, "the server is up")
            async with (
                RedisStateStore(own) as store,
                client_of(store) as client,
                Crew(own, tmp_path, lease_s=10.0, step_s=0.1) as crew,
            ):
                await _under_load(trial, server, Load(trial, store, client), crew)
            assert await leaked_keys(own) == []
            if fault == "power cut":
                trial.figures["unsynced_bytes"] = server.unsynced
                synced = appendfsync == "always"
                trial.expect(synced or server.unsynced, "all was synced: no power was cut")
        finally:
            server.kill()
    trial.conclude()


async def _under_load(trial: Trial, server: Server, load: Load, crew: Crew) -> None:
    store = load.store
    for _ in range(_WORKERS):
        await crew.start()
    calling = [
        asyncio.create_task(load.append(caller)) for caller in range(trial.parameters["callers"])
    ]
    calling.append(asyncio.create_task(load.submit()))
    kills: list[Kill] = []
    opened_ms: list[int] = []
    try:
        await eventually(lambda: _some_are_over(store), "the workers work", timeout_s=90)
        chance = random.Random(20)
        for _ in range(trial.parameters["kills"]):
            # So many moments as in the full size, sooner one after the other in a reduced one.
            await asyncio.sleep(chance.uniform(0.5, _PAUSE_S if trial.size.full else 1.5))
            began = time.monotonic()
            trial.faults += await asyncio.to_thread(server.kill) == -9
            server.start()
            await eventually(server.answers, "the server is up again", timeout_s=60)
            await server.rewrite()
            kills.append(Kill(began, time.monotonic()))
            opened_ms.append(await clock_ms(store.base.scripts))
        await asyncio.sleep(_AGAIN_S)
    finally:
        for task in calling:
            task.cancel()
        ended = await asyncio.gather(*calling, return_exceptions=True)
    for error in ended:
        trial.expect(isinstance(error, asyncio.CancelledError), f"a caller ended: {error!r}")
    await eventually(lambda: _all_are_over(store), "all tasks are over", timeout_s=120)
    found = await trails(store)
    await _judge_writes(trial, load, found, kills)
    _judge_tasks(trial, found)
    trial.expect(len(crew.alive()) == _WORKERS, f"{_WORKERS - len(crew.alive())} workers ended")
    _judge_outages(trial, found, [kill.ended for kill in kills], opened_ms)


async def _judge_writes(
    trial: Trial, load: Load, found: dict[str, list[StatusRow]], kills: list[Kill]
) -> None:
    callers, trial.duplicated = await load.rows()
    callers.append(
        [Acknowledged(at, ends(found.get(task, [])) > 0) for task, at in load.tasks.items()]
    )
    may_forget_s = MAY_FORGET_S[trial.parameters["appendfsync"]]
    trial.lost = sum(lost(done, kills, may_forget_s) for done in callers)
    gone = sum(not each.there for done in callers for each in done)
    trial.figures["forgotten"] = gone - trial.lost


def _judge_tasks(trial: Trial, found: dict[str, list[StatusRow]]) -> None:
    for task, trail in found.items():
        trial.duplicated += ends(trail) > 1
        trial.expect(wrong_move(trail) is None, f"{task}: {wrong_move(trail)}")
        trial.expect(trail[-1].status == TaskStatus.COMPLETE.value, f"{task}: {trail[-1].status}")
    trial.figures["tasks"] = statuses_of(found)


def _judge_outages(
    trial: Trial, found: dict[str, list[StatusRow]], opened: list[float], opened_ms: list[int]
) -> None:
    """Measure how long after each start callers and workers went on."""
    answered = sorted(ended for _, how, _, ended in trial.history.events if how == "ok")
    moved = sorted(
        reported.at_ms
        for trail in found.values()
        for reported in trail
        if reported.status != "PENDING"
    )
    callers = [answered[bisect_left(answered, at)] - at for at in opened]
    workers = [(moved[bisect_left(moved, at)] - at) / 1000 for at in opened_ms]
    trial.figures["callers_again"] = worst(callers)
    trial.figures["workers_again"] = worst(workers)
    trial.figures["promised_s"] = _AGAIN_S
    slowest = max([*callers, *workers])
    trial.expect(slowest <= _AGAIN_S * trial.size.tolerance, f"again only after {slowest:.1f} s")


async def _some_are_over(store: RedisStateStore) -> bool:
    return any(task.status.is_terminal for task in await store.list_tasks(SESSION))


async def _all_are_over(store: RedisStateStore) -> bool:
    return all(task.status.is_terminal for task in await store.list_tasks(SESSION))
