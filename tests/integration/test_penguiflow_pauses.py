"""A pause of a real ReactPlanner is resumed by one, and the others learn by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.planner import PlannerPause, ReactPlanner
from penguiflow.sessions import PlannerTaskPipeline
from penguiflow.state import SteeringEvent, SteeringEventType

from redis_state import ConfigError, Settings, TokenResolved, TokenUnknown
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.pauses import OncePlanner, resume_once
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually
from tests.processes.plan_once import AFTER, BEFORE, CONTEXT, make_planner, steps_of

DONE = ["look_up", "ask", "act"]
KINDS = pytest.mark.parametrize("kind", [ReactPlanner, OncePlanner])


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    made = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    yield made
    await made.aclose()


async def paused(planner: Any, context: dict[str, Any] | None = None) -> str:
    pause = await planner.run("question", tool_context=context or CONTEXT)
    assert isinstance(pause, PlannerPause)
    token: str = pause.resume_token
    return token


def lines_of(effects: Path) -> int:
    return len(effects.read_text().splitlines()) if effects.exists() else 0


@KINDS
async def test_the_second_who_resumes_learns_who_was_first(
    host: Any, tmp_path: Path, kind: Any
) -> None:
    effects = tmp_path / "effects"
    planner = make_planner(host, effects, BEFORE + AFTER, kind)
    token = await paused(planner)
    done = await resume_once(planner, host, token, "yes", by="ann", tool_context=CONTEXT)
    assert steps_of(done) == DONE
    other = make_planner(host, effects, AFTER, kind)
    for late in (planner, other):
        with pytest.raises(TokenResolved) as caught:
            await resume_once(late, host, token, "yes", tool_context=CONTEXT)
        assert caught.value.by == "ann"
    assert lines_of(effects) == 1


@KINDS
async def test_the_pausing_planner_cannot_resume_what_another_has_taken(
    host: Any, tmp_path: Path, kind: Any
) -> None:
    effects = tmp_path / "effects"
    planner = make_planner(host, effects, BEFORE + AFTER, kind)
    token = await paused(planner)
    other = make_planner(host, effects, AFTER, kind)
    done = await resume_once(other, host, token, "yes", tool_context=CONTEXT)
    assert steps_of(done) == DONE
    with pytest.raises(TokenResolved):
        await resume_once(planner, host, token, "yes", tool_context=CONTEXT)
    # Not by PenguiFlow's own way either: its copy is gone.
    with pytest.raises((KeyError, TokenResolved)):
        await planner.resume(token, "yes", tool_context=CONTEXT)
    assert lines_of(effects) == 1


async def test_the_pausing_planner_resumes_with_what_only_it_can_hold(
    host: Any, tmp_path: Path
) -> None:
    tool: Any = object()
    planner = make_planner(host, tmp_path / "effects", BEFORE + AFTER)
    token = await paused(planner, {"live": tool})
    done = await resume_once(planner, host, token, "yes")
    assert steps_of(done) == DONE


async def test_a_job_that_is_run_again_resumes_again_under_its_claim(
    host: Any, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    token = await paused(make_planner(host, effects, BEFORE))

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the worker dies")

    first = make_planner(host, effects, AFTER)
    first.resume = broken
    with pytest.raises(RuntimeError, match="the worker dies"):
        await resume_once(first, host, token, "yes", claim="job-17", tool_context=CONTEXT)
    again = make_planner(host, effects, AFTER)
    with pytest.raises(TokenResolved):
        await resume_once(again, host, token, "yes", claim="job-18", tool_context=CONTEXT)
    done = await resume_once(again, host, token, "yes", claim="job-17", tool_context=CONTEXT)
    assert steps_of(done) == DONE
    assert lines_of(effects) == 1


@KINDS
async def test_an_unknown_token_resumes_nothing(host: Any, tmp_path: Path, kind: Any) -> None:
    planner = make_planner(host, tmp_path / "effects", AFTER, kind)
    with pytest.raises(TokenUnknown):
        await resume_once(planner, host, "never was", "yes", tool_context=CONTEXT)


async def test_what_a_planner_forks_resumes_once_too(host: Any, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    planner = make_planner(host, effects, BEFORE + AFTER, OncePlanner).fork()
    assert type(planner) is OncePlanner
    token = await paused(planner)
    assert steps_of(await planner.resume(token, "yes", tool_context=CONTEXT)) == DONE
    with pytest.raises(TokenResolved):
        await planner.resume(token, "yes", tool_context=CONTEXT)
    assert lines_of(effects) == 1


async def test_a_planner_without_such_a_store_says_so(tmp_path: Path) -> None:
    planner = make_planner(None, tmp_path / "effects", BEFORE + AFTER, OncePlanner)
    token = await paused(planner)
    with pytest.raises(ConfigError, match="state_store"):
        await planner.resume(token, "yes", tool_context=CONTEXT)


async def test_a_session_resumes_its_planner_once_when_it_is_approved_from_elsewhere(
    host: Any, settings: Settings, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    elsewhere: Any = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    pipeline = PlannerTaskPipeline(
        planner_factory=lambda: make_planner(host, effects, BEFORE + AFTER, OncePlanner)
    )

    async def token_told() -> str | None:
        for update in await elsewhere.list_updates("session"):
            if update.update_type.value == "CHECKPOINT":
                return str(update.content["resume_token"])
        return None

    async def over() -> Any:
        (task,) = await elsewhere.list_tasks("session")
        return task if task.status.value == "COMPLETE" else None

    async with open_session(host, "session") as session:
        await session.spawn_task(pipeline, task_id="task", query="question")
        token = await eventually(token_told, "the session tells the token")
        assert token is not None
        approval = SteeringEvent(
            session_id="session",
            task_id="task",
            event_type=SteeringEventType.APPROVE,
            payload={"resume_token": token, "decision": "yes"},
        )
        await elsewhere.save_steering(approval)
        assert await eventually(over, "the task is over")
    with pytest.raises(TokenResolved):
        await resume_once(make_planner(elsewhere, effects, AFTER), elsewhere, token)
    assert lines_of(effects) == 1
    await elsewhere.aclose()
