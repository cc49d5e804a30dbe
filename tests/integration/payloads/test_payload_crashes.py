"""Workers that are killed around sealed and large payloads: another process continues."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker.tasks.histories import read_history
from tests.processes.workers.killed.claim_worker import LARGE
from tests.support.payloads import KEYS, dump, opened
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, queue_of
from tests.support.servers.faults import start_process

# What a run puts: the results of two steps, then the task's own.
PLACES = [
    *(f"{when} put {number}" for number in (1, 2) for when in ("before", "after")),
    "between steps",
    "after the pause",
    # Of the run after the pause, that puts nothing but the result.
    "result",
]


@pytest.mark.role("admin")
@pytest.mark.parametrize("place", PLACES)
async def test_a_worker_killed_around_a_large_payload_is_followed_by_another(
    settings: Settings, tmp_path: Path, place: str
) -> None:
    folder, url = tmp_path / "claims", (tmp_path / "claims").as_uri()
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "keys": KEYS[0],
        "folder": str(tmp_path),
        "place": "" if place == "result" else place,
    }
    async with (
        opened(settings, KEYS[0], claim_check_bytes=10_000, claim_check_url=url) as store,
        client_of(store) as client,
        AsyncExitStack() as stack,
    ):
        task = await client.submit("passing", LARGE, session_id=SESSION)
        for _ in range(2):
            process = await start_process("claim_worker", argument)
            stack.push_async_callback(children.end, process)
        await becomes(client, task, TaskStatus.PAUSED, timeout_s=60)
        if place == "result":
            # The rest is another process's, whose first object is the result.
            await stack.aclose()
            process = await start_process("claim_worker", argument | {"place": "after put 1"})
            stack.push_async_callback(children.end, process)
        await client.approve(await open_token(store, task), LARGE, actor="ann")
        if place == "result":
            await eventually((tmp_path / "killed").exists, "it is killed")
            process = await start_process("claim_worker", argument)
            stack.push_async_callback(children.end, process)
        async with asyncio.timeout(60):
            assert await client.result(SESSION, task) == LARGE
        assert (tmp_path / "killed").exists()
        history = await read_history(store, SESSION, task)
        assert history is not None
        steps = [note.result for name, note in history.journal.items() if name.startswith("step:")]
        assert steps == [LARGE, LARGE]
        # Each death leaves at most one object that nothing names.
        kept = await dump(store)
        named = b" ".join(kept.values())
        objects = [path for path in folder.rglob("*") if path.is_file()]
        unnamed = [path for path in objects if path.name.encode() not in named]
        assert len(objects) - len(unnamed) == 4
        assert len(unnamed) <= 1
        assert [key for key, held in kept.items() if b"marker-of-a-large" in held] == []
