"""A pause of a real ReactPlanner is resumed by one, and the others learn by whom."""

from __future__ import annotations

import asyncio
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
from tests.processes.penguiflow.plan_once import (
    AFTER,
    BEFORE,
    CONTEXT,
    Script,
    make_planner,
    steps_of,
)
from tests.support.samples import admin
from tests.support.servers.faults import Proxy, reached, run_processes

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
    done = await resume_once(planner, host, token, "yes", actor="ann", tool_context=CONTEXT)
    assert steps_of(done) == DONE
    other = make_planner(host, effects, AFTER, kind)
    for late in (planner, other):
        with pytest.raises(TokenResolved) as caught:
            await resume_once(late, host, token, "yes", tool_context=CONTEXT)
        assert caught.value.actor == "ann"
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
        await resume_once(first, host, token, "yes", idempotency_key="job-17", tool_context=CONTEXT)
    again = make_planner(host, effects, AFTER)
    with pytest.raises(TokenResolved):
        await resume_once(again, host, token, "yes", idempotency_key="job-18", tool_context=CONTEXT)
    done = await resume_once(
        again, host, token, "yes", idempotency_key="job-17", tool_context=CONTEXT
    )
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


def through(proxy: Proxy, settings: Settings) -> Any:
    return create_store(url=proxy.url, namespace=settings.namespace, call_timeout_s=1.0)


async def paused_while_the_server_is_unreachable(
    proxy: Proxy, host: Any, planner: Any, caplog: pytest.LogCaptureFixture
) -> str:
    await reached(host)
    proxy.refuse()
    assert proxy.cut()
    token = await paused(planner)
    assert "state_store_save_failed" in caplog.messages
    proxy.refuse(refusing=False)
    await reached(host)
    return token


async def test_a_pause_whose_save_failed_is_resumed_once_by_the_planner_that_holds_it(
    settings: Settings, host: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects = tmp_path / "effects"
    async with Proxy(settings.url.get_secret_value()) as proxy, through(proxy, settings) as broken:
        planner = make_planner(broken, effects, BEFORE + AFTER, OncePlanner)
        token = await paused_while_the_server_is_unreachable(proxy, broken, planner, caplog)
        assert steps_of(await planner.resume(token, "yes", tool_context=CONTEXT)) == DONE
    with pytest.raises(TokenResolved):
        await resume_once(make_planner(host, effects, AFTER), host, token, tool_context=CONTEXT)
    assert lines_of(effects) == 1


async def test_a_pause_whose_save_failed_is_saved_when_its_store_is_closed(
    settings: Settings, host: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    effects = tmp_path / "effects"
    async with Proxy(settings.url.get_secret_value()) as proxy, through(proxy, settings) as broken:
        planner = make_planner(broken, effects, BEFORE)
        token = await paused_while_the_server_is_unreachable(proxy, broken, planner, caplog)
    other = make_planner(host, effects, AFTER)
    assert steps_of(await resume_once(other, host, token, "yes", tool_context=CONTEXT)) == DONE


async def test_a_pause_whose_client_left_before_the_reply_is_resumed_by_another_process(
    settings: Settings, host: Any, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    token = await paused(make_planner(host, effects, BEFORE))
    key = host.base.keys.pause(token)
    async with Proxy(settings.url.get_secret_value()) as proxy, through(proxy, settings) as leaving:
        planner = make_planner(leaving, effects, AFTER, OncePlanner)
        await reached(leaving)
        proxy.silence()
        request = asyncio.create_task(planner.resume(token, "yes", tool_context=CONTEXT))

        async def claimed() -> bool:
            state: bytes = await admin(host, "HGET", key, "state")
            return state == b"resolved"

        await eventually(claimed, "the server has the claim")
        await eventually(lambda: proxy.swallowed > 0, "its reply is swallowed")
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        proxy.silence(silent=False)
        proxy.cut()
        await reached(leaving)
        await leaving.drain()
    await host.save_memory_state("go", {})
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "effects": str(effects),
        "how": "planner",
        "times": 1,
        "go": "go",
        "token": token,
    }
    (result,) = await run_processes("plan_once", [argument])
    assert result["outcomes"] == [DONE]
    assert lines_of(effects) == 1


@pytest.mark.parametrize("twice", [False, True])
async def test_a_client_that_leaves_before_the_planner_has_the_pause_loses_nothing(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, twice: bool
) -> None:
    effects = tmp_path / "effects"
    planner = make_planner(host, effects, BEFORE, OncePlanner)
    token = await paused(planner)
    key = host.base.keys.pause(token)
    requested = asyncio.Event()

    async def never(*_: Any, **__: Any) -> str:
        requested.set()
        await asyncio.Event().wait()
        return ""

    async def state() -> bytes:
        found: bytes = await admin(host, "HGET", key, "state")
        return found

    with monkeypatch.context() as held:
        held.setattr(Script, "complete", never)
        busy = asyncio.create_task(planner.run("another question", tool_context=CONTEXT))
        await requested.wait()
        request = asyncio.create_task(planner.resume(token, "yes", tool_context=CONTEXT))

        async def claimed() -> bool:
            return await state() == b"resolved"

        await eventually(claimed, "the request waits for the session")
        if twice:
            with pytest.raises(TokenResolved):
                await planner.resume(token, "yes", tool_context=CONTEXT)
        request.cancel()
        busy.cancel()
        await asyncio.gather(request, busy, return_exceptions=True)
    await host.drain()
    assert await state() == b"open"
    other = make_planner(host, effects, AFTER, OncePlanner)
    assert steps_of(await other.resume(token, "yes", tool_context=CONTEXT)) == DONE
    assert lines_of(effects) == 1


async def test_a_pause_that_the_planner_has_begun_with_is_not_given_to_another(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = tmp_path / "effects"
    planner = make_planner(host, effects, BEFORE + AFTER, OncePlanner)
    token = await paused(planner)
    requested = asyncio.Event()

    async def never(*_: Any, **__: Any) -> str:
        requested.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(Script, "complete", never)
    request = asyncio.create_task(planner.resume(token, "yes", tool_context=CONTEXT))
    await requested.wait()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await host.drain()
    for late in (planner, make_planner(host, effects, AFTER, OncePlanner)):
        with pytest.raises(TokenResolved):
            await late.resume(token, "yes", tool_context=CONTEXT)
