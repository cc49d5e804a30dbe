"""Sessions and pauses of the published PenguiFlow, in several processes at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from redis_state import Settings
from redis_state.integrations.penguiflow import create_store
from redis_state.testing import eventually
from tests.support.processes import children
from tests.support.servers.faults import run_processes, start_process


def place(settings: Settings) -> dict[str, Any]:
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace}


async def line(process: children.Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        read = await process.stdout.readline()
    assert read, "the process has ended"
    return json.loads(read)


async def test_a_session_of_a_killed_process_goes_on_in_a_second_and_is_steered_from_a_third(
    settings: Settings,
) -> None:
    here = place(settings)
    store: Any = create_store(**here)
    first = await start_process("run_session", here)
    try:
        (steerer,) = await run_processes("run_session", [{**here, "texts": ["early"]}])
        assert await line(first) == "early"

        async def recorded() -> bool:
            key = '["redis_state steering told", "session", "task"]'
            return await store.load_memory_state(key) is not None

        async def published() -> bool:
            updates = await store.list_updates("session", limit=10_000)
            return any(update.update_type.value == "PROGRESS" for update in updates)

        await eventually(recorded, "it is noted as told")
        # PenguiFlow saves it without waiting: it says that it has heard before that is done.
        await eventually(published, "what it has heard is published")
    finally:
        first.kill()
        await first.communicate()
    second = await start_process("run_session", here)
    try:
        await run_processes("run_session", [{**here, "texts": ["late", "stop"]}])
        assert [await line(second), await line(second)] == ["late", "stop"]
        ended = await line(second)
    finally:
        if second.returncode is None:
            await second.communicate()
    assert ended["found"] == {"task": "RUNNING"}
    assert ended["results"] == [["late", "stop"]]
    assert len({first.pid, second.pid, steerer}) == 3

    updates = await store.list_updates("session", limit=10_000)
    ids = [update.update_id for update in updates]
    assert len(set(ids)) == len(ids)
    heard = [update.content for update in updates if update.update_type.value == "PROGRESS"]
    assert heard == [
        {"pid": first.pid, "heard": "early"},
        {"pid": second.pid, "heard": "late"},
        {"pid": second.pid, "heard": "stop"},
    ]
    received = [update.content["event_id"] for update in updates if "event_id" in update.content]
    events = await store.list_steering("session")
    assert received == [event.event_id for event in events]
    assert len(events) == 3
    await store.aclose()


async def resume_everywhere(
    settings: Settings, effects: Path, how: str, *, own_last: bool = False
) -> list[Any]:
    """Pause in one process; resume in it, thrice at once, and in two others at the same time.

    With ``own_last`` the process that paused resumes when the others are done.
    """
    common = {**place(settings), "effects": str(effects), "how": how, "times": 3, "go": "go"}
    store: Any = create_store(**place(settings))
    own = {**common, "go": "go on" if own_last else "go"}
    started = [await start_process("plan_once", own)]
    try:
        token = await line(started[0])
        started += [await start_process("plan_once", {**common, "token": token}) for _ in range(2)]
        assert [await line(process) for process in started[1:]] == [token] * 2
        await store.save_memory_state("go", {})
        ended = [await line(process) for process in started[1:]]
        await store.save_memory_state("go on", {})
        ended.append(await line(started[0]))
    finally:
        await asyncio.gather(*(process.communicate() for process in started))
        await store.aclose()
    return [outcome for process in ended for outcome in process["outcomes"]]


@pytest.mark.parametrize("how", ["once", "planner"])
async def test_a_pause_resumed_by_three_processes_at_once_runs_once(
    settings: Settings, tmp_path: Path, how: str
) -> None:
    effects = tmp_path / "effects"
    outcomes = await resume_everywhere(settings, effects, how)
    assert len(outcomes) == 9
    assert [outcome for outcome in outcomes if isinstance(outcome, list)] == [
        ["look_up", "ask", "act"]
    ]
    assert outcomes.count("TokenResolved") == 8
    assert len(effects.read_text().splitlines()) == 1
    store: Any = create_store(**place(settings))
    trajectory = await store.get_trajectory("trace", "session")
    assert [step.action.next_node for step in trajectory.steps] == ["look_up", "ask", "act"]
    await store.aclose()


async def test_without_the_claim_the_pausing_process_and_another_both_run_it(
    settings: Settings, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    await resume_everywhere(settings, effects, "plain", own_last=True)
    assert len(effects.read_text().splitlines()) == 2
