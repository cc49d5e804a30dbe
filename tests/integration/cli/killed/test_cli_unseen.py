"""Commands that make something, and whose reply is lost: they name what repeats them safely."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from pydantic import SecretStr
from typer import Typer

from redis_state import RedisStateStore, Settings
from redis_state.agents import SessionStore
from redis_state.cli import commands
from redis_state.cli.sessions.session import session
from redis_state.worker import Schedule, TaskClient
from tests.support.agents.sessions import fresh
from tests.support.commands import begin, cli, end
from tests.support.processes.pools import SESSION, client_of
from tests.support.servers.proxies.command_proxy import CommandProxy

AT_PROXY: dict[str, Any] = {"REDIS_STATE_CALL_TIMEOUT_S": "1", "REDIS_STATE_CONNECT_TIMEOUT_S": "1"}
NAMED = re.compile(r"repeat the command with (--\S+) (\S+), and it happens once")


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as proxy:
        yield proxy


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    """Give a client of a pool without workers, with a task, a schedule and a session."""
    async with client_of(store) as client:
        await client.submit("h", 1, session_id=SESSION, task_id="source", queue="nobodys")
        hourly: dict[str, Any] = {"every": timedelta(hours=1), "queue": "nobodys"}
        hourly |= {"schedule_id": "hourly", "handler": "h", "session_id": "scheduled"}
        await client.schedules.save(Schedule(**hourly), paused=True)
        await SessionStore(store).create(fresh("agent"))
        yield client


@contextmanager
def lost(proxy: CommandProxy, script: str) -> Generator[None]:
    """Lose the reply to the first call of a script, and let no repetition pass."""
    with proxy.cut_after(script), proxy.cut_before(script, at=2, times=None):
        yield


Count: TypeAlias = Callable[[TaskClient], Awaitable[int]]


async def tasks_of(client: TaskClient) -> int:
    return len((await client.find()).tasks)


async def steered(client: TaskClient) -> int:
    return len(await client.store.list_steering(SESSION, task_id="source"))


async def signalled(client: TaskClient) -> int:
    journal = client.store.base.keys.journal(SESSION, "source")
    found = await client.store.transport.commands.hgetall(journal)
    return sum(name.startswith(b"mail:") for name in found)


async def sessions_of(client: TaskClient) -> int:
    return len((await SessionStore(client.store).list_headers()).headers)


@dataclass(frozen=True, slots=True)
class Case:
    """A command, the script whose reply is lost, and how what it makes is counted."""

    arguments: tuple[str, ...]
    script: str
    count: Count = field(default=tasks_of)
    # What is there before it is repeated, and how its repetition ends.
    made: int = 1
    again: int = 0
    app: Typer = commands.app


CASES = {
    "submit": Case(("submit", "h", "2", "-s", SESSION, "--queue", "nobodys"), "create_task"),
    "rerun": Case(("rerun", SESSION, "source"), "create_task"),
    "fork": Case(("fork", SESSION, "source"), "fork_task"),
    "all": Case(("rerun", "--session", SESSION, "--yes"), "create_task"),
    "trigger": Case(("schedules", "trigger", "hourly"), "save_schedule", made=0),
    "steer": Case(("steer", SESSION, "source", "redirect", "on"), "append_log", steered),
    "signal": Case(("signal", SESSION, "source", "n", "1"), "send_message", signalled),
    "session": Case(("fork", "agent"), "save_session", sessions_of, again=4, app=session),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_command_whose_reply_is_lost_names_what_repeats_it_safely(
    settings: Settings, client: TaskClient, proxy: CommandProxy, name: str
) -> None:
    case = CASES[name]
    before = await case.count(client)
    at_proxy: dict[str, Any] = AT_PROXY | {"REDIS_STATE_URL": proxy.url}
    with lost(proxy, case.script):
        ran = await cli(settings, *case.arguments, app=case.app, **at_proxy)
    assert ran.status in (1, 5), ran.err
    named = NAMED.search(ran.err)
    assert named, ran.err
    assert await case.count(client) == before + case.made
    again = await cli(settings, *case.arguments, *named.groups(), app=case.app)
    assert again.status == case.again, again.err
    assert await case.count(client) == before + 1


async def test_all_that_ends_behind_its_first_page_names_its_key(
    settings: Settings, client: TaskClient, proxy: CommandProxy
) -> None:
    made = (client.submit("h", n, session_id=SESSION, queue="nobodys") for n in range(100))
    await asyncio.gather(*made)
    at_proxy: dict[str, Any] = AT_PROXY | {"REDIS_STATE_URL": proxy.url}
    arguments = ("rerun", "--session", SESSION, "--yes", "--limit", "200")
    with ExitStack() as cut:

        async def cut_finding() -> None:
            cut.enter_context(proxy.answer("find_tasks", times=None))

        with proxy.meanwhile("create_task", cut_finding):
            ran = await cli(settings, *arguments, **at_proxy)
    assert ran.status in (1, 5), ran.err
    named = NAMED.search(ran.err)
    assert named, ran.err
    again = await cli(settings, *arguments, *named.groups())
    assert again.status == 0, again.err
    assert len((await client.find(limit=500)).tasks) == 2 * 101


async def test_a_steering_event_that_is_sent_is_named_if_its_task_cannot_be_read(
    settings: Settings, client: TaskClient, proxy: CommandProxy
) -> None:
    at_proxy: dict[str, Any] = AT_PROXY | {"REDIS_STATE_URL": proxy.url}
    with ExitStack() as cut:

        async def cut_reading() -> None:
            cut.enter_context(proxy.answer("HMGET", times=None))

        with proxy.meanwhile("append_log", cut_reading):
            ran = await cli(settings, "steer", SESSION, "source", "redirect", "on", **at_proxy)
    assert await steered(client) == 1, ran.err
    assert ran.status in (1, 5), ran.err
    assert "sent as event" in ran.err


async def test_an_id_that_was_given_is_named_too(
    settings: Settings, client: TaskClient, proxy: CommandProxy
) -> None:
    at_proxy: dict[str, Any] = AT_PROXY | {"REDIS_STATE_URL": proxy.url}
    with lost(proxy, "create_task"):
        ran = await cli(settings, *CASES["submit"].arguments, "--id", "my own", **at_proxy)
    assert "--id 'my own'" in ran.err
    assert await client.get(SESSION, "my own") is not None


async def test_a_call_that_did_not_happen_names_nothing(settings: Settings) -> None:
    at_nobody: dict[str, Any] = AT_PROXY | {"REDIS_STATE_URL": "redis://127.0.0.1:1/0"}
    ran = await cli(settings, *CASES["submit"].arguments, **at_nobody)
    assert (ran.status, "repeat" in ran.err) == (5, False), ran.err


async def test_a_submission_that_is_interrupted_names_its_id(
    settings: Settings, client: TaskClient, proxy: CommandProxy
) -> None:
    sent = asyncio.Event()

    async def note() -> None:
        sent.set()
        # Until the command has ended, which cuts its connection.
        await asyncio.Event().wait()

    at_proxy = settings.model_copy(update={"url": SecretStr(proxy.url)})
    with proxy.meanwhile("create_task", note):
        process = await begin(at_proxy, *CASES["submit"].arguments)
        await sent.wait()
        process.send_signal(signal.SIGINT)
        ran = await end(process)
    assert ran.status == 130
    assert NAMED.search(ran.err), ran.err
