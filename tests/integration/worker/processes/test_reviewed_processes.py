"""Workers are killed within a text, between typed signals, and around a payload too large."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.testing.histories import assert_fits, replay_history
from redis_state.worker import TextReader
from redis_state.worker.tasks.histories import read_history
from tests.chaos.support.crew import recorded
from tests.processes.workers.killed.reviewed_worker import CHANGED, LIMIT, SAME, WORDS, Review
from tests.support.commands import begin, end
from tests.support.processes.pools import SESSION, client_of, queue_of, updates_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.faults import run_processes

pytestmark = pytest.mark.worker

WORKER = "tests.processes.workers.killed.reviewed_worker"


def reviewed(folder: Path) -> dict[str, Any]:
    return {"program": "reviewed_worker", "folder": str(folder)}


async def hangs(folder: Path, task: str, run: int) -> None:
    await eventually(lambda: [task, run] in recorded(folder, "hangs"), f"run {run} hangs")


async def text_of(store: RedisStateStore, task: str) -> TextReader:
    reader = TextReader()
    for row in await updates_of(store, task):
        reader.feed(row)
    return reader


async def replayed(store: RedisStateStore, name: str) -> tuple[int, list[tuple[str, str]]]:
    """Hold code against the stored journals of one handler, in a process of its own."""
    arguments = ("replay", f"{WORKER}:{name}", "--handler", "draft", "--json")
    ran = await end(await begin(store.settings, *arguments))
    return ran.status, [(one["task_id"], one["verdict"]) for one in ran.document["tasks"]]


async def test_texts_values_and_typed_signals_outlive_two_workers_and_are_replayed_between(
    store: RedisStateStore, tmp_path: Path
) -> None:
    options = reviewed(tmp_path)
    async with client_of(store) as client:
        task = await client.submit("draft", session_id=SESSION)
        waiting = asyncio.create_task(client.value(SESSION, task, "text", wait=60))
        async with worker_process(store.settings, "one", **options) as one:
            await hangs(tmp_path, task, 1)

            async def half_is_shown() -> bool:
                texts = (await text_of(store, task)).texts.values()
                return any(f"word {WORDS // 2}." in text.text for text in texts)

            await eventually(half_is_shown, "half of the text is shown")
            assert not waiting.done()
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        for number, review in enumerate([{"score": 1}, {"score": "bad"}, {"score": 3}]):
            for _ in "ab":
                # As a sender does that died before it had the reply.
                key = f"k{number}"
                await client.signal(SESSION, task, "review", review, idempotency_key=key)
        async with worker_process(store.settings, "two", **options) as two:
            await hangs(tmp_path, task, 2)
            assert await stop(two, signal.SIGKILL) == -signal.SIGKILL
        assert await client.value(SESSION, task, "reviews") == [1, {"score": "bad"}]
        await _is_replayed_without_effects(store, task, tmp_path)
        await client.signal(SESSION, task, "review", Review(score=4))
        async with worker_process(store.settings, "three", **options):
            found = await client.result(SESSION, task, timeout_s=60)
        assert found == [1, {"score": "bad"}, 3, 4]
        assert await client.value(SESSION, task, "reviews") == found
        # A wait through the first death ends with the text of the run that finished it.
        text = "".join(f"run 2 word {number}. " for number in range(WORDS))
        assert await waiting == text
    (shown,) = (await text_of(store, task)).texts.values()
    assert (shown.text, shown.ended, shown.complete) == (text, True, True)
    assert recorded(tmp_path, "effects") == [[task, "write"]]
    values = [
        (row.content["key"], row.content["value"])
        for row in await updates_of(store, task)
        if row.content.get("notice") == "value"
    ]
    # Three runs have published each value once, in order.
    assert values == [("text", text), *(("reviews", found[:n]) for n in range(1, 5))]


async def _is_replayed_without_effects(store: RedisStateStore, task: str, folder: Path) -> None:
    """Check what new code would do to a task whose worker is dead, and that nothing is touched."""
    before = await store.tasks.load(SESSION, task), await updates_of(store, task)
    assert await replayed(store, "SAME") == (0, [(task, "fits")])
    assert await replayed(store, "CHANGED") == (1, [(task, "diverges")])
    history = await read_history(store, SESSION, task)
    assert history is not None
    assert_fits(await replay_history(SAME, history))
    report = await replay_history(CHANGED, history)
    assert report.why == "it calls step:check#1 where step:write#1 is recorded"
    assert (await store.tasks.load(SESSION, task), await updates_of(store, task)) == before
    assert recorded(folder, "effects") == [[task, "write"]]
    assert recorded(Path("nowhere"), "effects") == []


async def test_a_payload_too_large_is_refused_again_after_a_kill(
    store: RedisStateStore, tmp_path: Path
) -> None:
    options = reviewed(tmp_path)
    async with client_of(store) as client:
        task = await client.submit("bounded", session_id=SESSION)
        async with worker_process(store.settings, "one", **options) as one:
            await hangs(tmp_path, task, 1)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        async with worker_process(store.settings, "two", **options):
            ended = await client.wait(SESSION, task, timeout_s=60)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, ["small", LIMIT + 2, LIMIT])
    assert recorded(tmp_path, "effects") == [[task, "small"]]
    history = await read_history(store, SESSION, task)
    assert history is not None
    kept = [entry for entry in history.journal if entry.startswith("step:")]
    assert "step:small#1" in kept
    assert "x" * 100 not in str(history.journal)


async def test_two_of_three_decide_once_though_the_worker_dies_before_and_after(
    store: RedisStateStore, tmp_path: Path
) -> None:
    options = reviewed(tmp_path)
    async with client_of(store) as client:
        task = await client.submit("panel", session_id=SESSION)
        async with worker_process(store.settings, "one", **options) as one:
            await hangs(tmp_path, task, 1)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        await client.delegate(pause.token, "dan", actor="cyd")
        argument = {
            "url": store.settings.url.get_secret_value(),
            "namespace": store.settings.namespace,
            "queue": queue_of(store.settings),
            "tokens": [pause.token],
        }
        voters = [argument | {"actors": [actor]} for actor in ("ann", "ben", "dan")]
        voted = await run_processes("vote_on_pauses", voters)
        async with worker_process(store.settings, "two", **options) as two:
            await hangs(tmp_path, task, 2)
            assert await stop(two, signal.SIGKILL) == -signal.SIGKILL
        async with worker_process(store.settings, "three", **options):
            approved, actor, votes = await client.result(SESSION, task, timeout_s=60)
    taken = [vote for each in voted for vote in each["taken"][pause.token]]
    lost = [vote for each in voted for vote in each["lost"][pause.token]]
    # Each vote that was taken counts once, the last one decides, and a later one learns of it.
    assert sorted(taken) == sorted(votes)
    assert [vote[1] for vote in votes].count(approved) == 2
    assert votes[-1][:2] == [actor, approved]
    assert lost == [[actor, approved]] * (3 - len(votes))
    assert recorded(tmp_path, "effects") == [[task, "small"]]
