"""Starts that the server refuses in their middle: trouble of the worker, not of the task."""

from __future__ import annotations

from uuid import uuid4

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CommandRefused
from redis_state.models import TaskStatus
from redis_state.primitives.lease import Leases
from redis_state.worker.queue.jobs.job import JobPayload, RunAgain
from redis_state.worker.runs.config import AGAIN_S, RunConfig
from redis_state.worker.runs.run_task import run_task
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import MAX_CRASHES, TaskTransitions
from tests.support.processes.pools import SESSION
from tests.support.samples import admin, own_server
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.tasks.crash_states import submitted


@pytest.mark.parametrize("command", ["hgetall", "type", "hincrby", "zadd"])
async def test_a_start_for_which_the_worker_lacks_a_right_counts_as_no_death(command: str) -> None:
    with own_server() as own:
        async with RedisStateStore.from_url(own.url) as store:
            task, transitions = await submitted(store), TaskTransitions(store)

            async def start() -> object:
                return await transitions.start(
                    SESSION, task, owner=uuid4().hex, lease_ms=1, worker="w"
                )

            await admin(store, "ACL", "SETUSER", "default", f"-{command}")
            for _ in range(MAX_CRASHES + 2):
                with pytest.raises(CommandRefused, match=command.upper()):
                    await start()
                await clock_passes(store.base.scripts, await clock_ms(store.base.scripts) + 1)
            await admin(store, "ACL", "SETUSER", "default", f"+{command}")
            found = await start()
            assert isinstance(found, StartedRun)
            assert (found.crashes, found.taken_over) == (0, False)
            await transitions.finish_run(found, TaskStatus.COMPLETE, result=1)
            state = await store.tasks.load(SESSION, task)
            assert state is not None
            assert state.status is TaskStatus.COMPLETE


async def test_a_start_that_is_refused_for_ever_does_not_drive_a_sessions_updates_away() -> None:
    with own_server() as own:
        async with RedisStateStore.from_url(own.url) as store:
            task, leases = await submitted(store), Leases(store.base.scripts, keep_ms=60_000)
            config = RunConfig({}, "worker", 10.0, 60.0, 70.0, leases)
            before = len(await store.list_updates(SESSION))
            await admin(store, "ACL", "SETUSER", "default", "-type")
            with pytest.raises(RunAgain) as again:
                await run_task(store, config, JobPayload(SESSION, task), queue="q")
            # It has told that the task runs, and that it waits.
            assert len(await store.list_updates(SESSION)) == before + 2
            assert again.value.defer_s >= 20 * AGAIN_S
