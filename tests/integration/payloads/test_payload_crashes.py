"""Workers that are killed around sealed and large payloads: another process continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from tests.support.payloads import KEYS, REVERSED, dump, in_bucket, opened, s3_bucket
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
    folder = tmp_path / "claims"

    def objects() -> list[str]:
        return [path.name for path in folder.rglob("*") if path.is_file()]

    await _is_followed(settings, tmp_path, place, folder.as_uri(), objects)


@pytest.mark.role("admin")
async def test_a_worker_killed_around_a_large_payload_in_a_bucket_is_followed_by_another(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_bucket(monkeypatch) as (url, s3):

        def objects() -> list[str]:
            return [name.rpartition("/")[2] for name in in_bucket(s3)]

        await _is_followed(settings, tmp_path, "after put 2", url, objects)


@pytest.mark.role("admin")
async def test_a_killed_worker_with_a_codec_of_its_own_is_followed_by_another(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "claims"

    def objects() -> list[str]:
        return [path.name for path in folder.rglob("*") if path.is_file()]

    await _is_followed(
        settings, tmp_path, "between steps", folder.as_uri(), objects, codec=REVERSED
    )
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    # "b3du" is "own", with which the codec begins.
    assert all(data.startswith(b'\r"sealed:c:b3du') for data in written)


async def _is_followed(
    settings: Settings,
    tmp_path: Path,
    place: str,
    url: str,
    objects: Callable[[], list[str]],
    *,
    codec: str | None = None,
) -> None:
    """Have a worker die at a place, and another one go on; check what both have left."""
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "keys": KEYS[0],
        "codec": codec,
        "claims": url,
        "folder": str(tmp_path),
        "place": "" if place == "result" else place,
    }
    options: dict[str, Any] = {"claim_check_bytes": 10_000, "claim_check_url": url}
    async with (
        opened(settings, KEYS[0], payload_codec=codec, **options) as store,
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
        there = objects()
        unnamed = [name for name in there if name.encode() not in named]
        assert len(there) - len(unnamed) == 4
        assert len(unnamed) <= 1
        assert [key for key, held in kept.items() if b"marker-of-a-large" in held] == []
