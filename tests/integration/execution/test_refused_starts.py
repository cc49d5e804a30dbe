"""Starts that the server refuses in their middle: trouble of the worker, not of the task."""

from __future__ import annotations

from uuid import uuid4

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CommandRefused
from redis_state.models import TaskStatus
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
