"""Keys of payloads that are replaced, one worker after the other, while workers are killed."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import PayloadUnreadable, RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from redis_state.worker.tasks.histories import read_history
from tests.chaos.support.crew import Crew, ends, statuses_of, trails, wrong_move
from tests.chaos.support.trial import Trial
from tests.support.payloads import KEYS, opened
from tests.support.processes.pools import SESSION, client_of

OLD, NEW = KEYS[0], KEYS[1]
_WORKERS = 3
# The order of `docs/guides/payloads.md`, and the shorter one that skips its first step.
_ORDERS = {"in order": [f"{OLD},{NEW}", f"{NEW},{OLD}"], "at once": [f"{NEW},{OLD}"]}


class Rotation:
    """The workers, what they are given, and the clients of each time."""

    def __init__(self, trial: Trial, crew: Crew, client: TaskClient) -> None:
        self._trial = trial
        self._crew = crew
        self._client = client
        self._chance = random.Random(17)
        self.tasks: list[str] = []

    async def submit(self, number: int) -> None:
        """Submit tasks, which are sealed with the client's first key."""
        for _ in range(number):
            name = f"t{len(self.tasks)}"
            with self._trial.history.doing("submit"):
                await self._client.submit("work", name, session_id=SESSION, task_id=name)
            self.tasks.append(name)

    async def restart_each(self, keys: str, kills: int) -> None:
        """Kill each worker, and start one with these keys; then kill some more."""
        for name in self._crew.alive():
            await self._kill(name)
            await self._crew.start(keys=keys)
        for _ in range(kills):
            await self._kill(self._chance.choice(self._crew.alive()))
            await self._crew.start(keys=keys)

    async def _kill(self, name: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.02, 0.3))
        assert self._crew.processes[name].returncode is None
        self._trial.faults += await self._crew.kill(name) == -signal.SIGKILL


@pytest.mark.parametrize("order", _ORDERS)
async def test_keys_are_replaced_while_workers_are_killed(
    trial: Trial, settings: Settings, tmp_path: Path, order: str
) -> None:
    tasks = trial.size.of(60, least=4)
    kills = trial.size.of(60, least=2)
    trial.parameters = {"tasks": tasks, "kills": kills, "workers": _WORKERS, "order": order}
    async with AsyncExitStack() as stack:
        older = await stack.enter_async_context(opened(settings, OLD))
        both = await stack.enter_async_context(opened(settings, NEW, OLD))
        newer = await stack.enter_async_context(opened(settings, NEW))
        client = await stack.enter_async_context(client_of(both))
        crew = await stack.enter_async_context(
            Crew(settings, tmp_path, program="rotated_worker", lease_s=0.5)
        )
        rotation = Rotation(trial, crew, await stack.enter_async_context(client_of(older)))
        for _ in range(_WORKERS):
            await crew.start(keys=OLD)
        await rotation.submit(tasks)
        for keys in _ORDERS[order]:
            await rotation.restart_each(keys, kills)
            await rotation.submit(tasks)
        await _decide_all(client, rotation.tasks)
        await _judge(trial, both, client, rotation.tasks)
        await _leave_the_old_ones(trial, newer, crew, rotation)
    trial.conclude()


async def _decide_all(client: TaskClient, tasks: list[str]) -> None:
    """Approve each pause as it comes, until all tasks are over."""

    async def over() -> bool:
        for pause in await client.pauses(SESSION):
            assert pause.pause_id is not None
            await client.approve(pause.pause_id, f"{pause.task_id} decision")
        found = [await client.get(SESSION, task) for task in tasks]
        return all(state is not None and state.status.is_terminal for state in found)

    await eventually(over, "all tasks are over", timeout_s=120)


async def _judge(
    trial: Trial, store: RedisStateStore, client: TaskClient, tasks: list[str]
) -> None:
    found = await trails(store)
    for task in tasks:
        state = await client.get(SESSION, task)
        assert state is not None
        one = f"{task} one"
        result = [task, one, f"{task} child", f"{task} decision", f"{one} two"]
        trial.lost += (state.status, state.result) != (TaskStatus.COMPLETE, result)
        trial.duplicated += ends(found[task]) > 1
        trial.expect(wrong_move(found[task]) is None, f"{task}: {wrong_move(found[task])}")
        trial.lost += await client.value(SESSION, task, "value") != f"{task} value"
        history = await read_history(store, SESSION, task)
        trial.lost += history is None or history.input != task
    trial.figures["ends"] = statuses_of({task: found[task] for task in tasks})
    contents = [update.content for update in await store.list_updates(SESSION, limit=100_000)]
    trial.expect("<encrypted>" not in str(contents), "an update cannot be read")


async def _leave_the_old_ones(
    trial: Trial, newer: RedisStateStore, crew: Crew, rotation: Rotation
) -> None:
    """Have workers meet a task whose key is gone: they leave it, and one that has it ends it."""
    for name in crew.alive():
        await crew.kill(name)
    done = rotation.tasks[:]
    await rotation.submit(1)
    (left,) = rotation.tasks[len(done) :]
    blind = await crew.start(keys=NEW)

    async def was_left() -> bool:
        updates = await newer.list_updates(SESSION, task_id=left)
        changes = [u.content for u in updates if u.update_type is UpdateType.STATUS_CHANGE]
        return any("cannot be read" in str(content.get("reason")) for content in changes)

    await eventually(was_left, "a worker without the key leaves it", timeout_s=60)
    async with client_of(newer) as client:
        state = await client.get(SESSION, left)
        assert state is not None
        trial.expect(not state.status.is_terminal, f"{left} is {state.status}")
    for task in (left, done[0]):
        with pytest.raises(PayloadUnreadable, match=f"of task '{task}'"):
            await read_history(newer, SESSION, task)
    await crew.kill(blind)
    await crew.start(keys=f"{NEW},{OLD}")
    async with opened(newer.settings, NEW, OLD) as both, client_of(both) as client:
        await _decide_all(client, [left])
        state = await client.get(SESSION, left)
        assert state is not None
        trial.expect(state.status is TaskStatus.COMPLETE, f"{left} was not completed")
