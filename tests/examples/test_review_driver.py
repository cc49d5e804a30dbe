"""The driver of the review with workers of this process, in an order that is forced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

for _needed in ("arq", "typer", "rich", "markdown_it"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

from rich.console import Console  # noqa: E402

from examples.review.driver import Options, ReviewDriver  # noqa: E402
from examples.review.tasks import worker  # noqa: E402
from examples.review.view import PlainView  # noqa: E402
from redis_state import RedisStateStore, Settings, TaskClient  # noqa: E402
from redis_state.models import TaskStatus  # noqa: E402
from redis_state.testing import eventually  # noqa: E402
from tests.support.processes.pools import queue_of  # noqa: E402


class LocalPool:
    """Workers of this process, which are retired as the driver wants it."""

    def __init__(self, settings: Settings) -> None:
        self.queue = queue_of(settings)
        self._settings = settings
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._started = 0

    async def __aenter__(self) -> Self:
        for _ in range(2):
            self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self._serving):
            await self._stop(name)

    async def death(self) -> str:
        """Wait for ever: none of them ends by itself."""
        ended: str = await asyncio.get_running_loop().create_future()
        return ended

    async def retire(self, name: str) -> str:
        await self._stop(name)
        return self._start()

    def _start(self) -> str:
        self._started += 1
        name = f"w{self._started}"
        made = replace(worker, settings=self._settings, queue=self.queue, name=name)
        self._serving[name] = asyncio.create_task(made.serve(handle_signals=False))
        return name

    async def _stop(self, name: str) -> None:
        serving = self._serving.pop(name)
        serving.cancel()
        await asyncio.wait({serving})


async def test_a_task_is_steered_before_it_is_decided_however_late_that_is(
    store: RedisStateStore, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [
        tmp_path / f"{name}.md" for name in ("informed", "redirected", "cancelled", "plain")
    ]
    for path in documents:
        path.write_text("# Title\n\nText.\n", encoding="utf-8")
    options = Options(documents, root=tmp_path, output=tmp_path / "out")
    async with (
        TaskClient(store, queue=queue_of(settings)) as client,
        LocalPool(settings) as workers,
    ):
        steer, late = client.steer, list[str]()

        async def steer_late(session_id: str, task_id: str, *event: Any, **named: Any) -> Any:
            async def others_are_over() -> bool:
                tasks = await store.list_tasks(session_id)
                plain, paused = tasks[-1], next(each for each in tasks if each.task_id == task_id)
                assert not paused.status.is_terminal, f"{paused.description} was decided"
                return plain.status is TaskStatus.COMPLETE

            await eventually(others_are_over, "the task that nobody steers is complete")
            late.append(task_id)
            return await steer(session_id, task_id, *event, **named)

        monkeypatch.setattr(client, "steer", steer_late)
        pool: Any = workers
        view = PlainView(Console(quiet=True))
        outcome = await ReviewDriver(options, store, client, pool, view).run()
    assert outcome.problems == []
    assert sorted(late) == ["review-00", "review-01", "review-02"]
