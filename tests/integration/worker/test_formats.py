"""Tasks that a later version of the library has written, in a pool of both."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.runs import run_task
from redis_state.worker.tasks import task_format
from redis_state.worker.tasks.task_format import format_of_copy
from tests.support.processes.pools import SESSION, client_of, pool, statuses


async def _answer(_: TaskContext) -> int:
    return 42


async def test_a_worker_leaves_what_a_later_version_wrote_to_that_one(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(run_task, "_LEFT_S", (0.01, 0.01))
    async with client_of(store) as client:
        monkeypatch.setattr(task_format, "FORMAT", 2)
        newer = await client.submit("answer", session_id=SESSION)
        monkeypatch.setattr(task_format, "FORMAT", 1)
    async with pool(store, {"answer": _answer}) as client:
        await eventually(
            lambda: caplog.text.count(f"{newer!r} is left to other workers: newer") > 1,
            "an older worker has come across it twice",
        )
        # It works on meanwhile.
        older = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, older, timeout_s=60)).result == 42
        assert await statuses(store, newer) == ["PENDING"]
        view = await client.inspect(SESSION, newer)
        assert view is not None
        assert (view.state.status, view.attempts) == (TaskStatus.PENDING, 0)
        monkeypatch.setattr(task_format, "FORMAT", 2)
        assert (await client.wait(SESSION, newer, timeout_s=60)).result == 42
        again = await client.submit("answer", session_id=SESSION)
        await client.wait(SESSION, again, timeout_s=60)
    written = [
        await store.transport.commands.hget(store.base.keys.task(SESSION, task), "format")
        for task in (older, again)
    ]
    assert written == [None, b"2"]


def test_a_fork_is_of_its_sources_format_or_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert format_of_copy({}) == {}
    assert format_of_copy({"format": b"3"}) == {"format": b"3"}
    monkeypatch.setattr(task_format, "FORMAT", 4)
    assert format_of_copy({}) == format_of_copy({"format": b"3"}) == {"format": b"4"}
