"""The sender when the server refuses it, restarts or loads, and when it fails by itself."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from redis_state.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
    OutcomeUnknown,
)
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from tests.support.servers.calls import has, outcome_of
from tests.support.servers.faults import (
    FailingLocator,
    Proxy,
    run_server,
    sender_to,
    short_directory,
)
from tests.support.timing import LONG_S

# What a deadline may be late by: a tenth of a second by design, the rest for a busy machine.
SECRET = "s3cret"


async def login_problem(url: str, kind: type[NoConnection] = AuthenticationFailed) -> str:
    """Try to connect; give every text in which the failure could be seen."""
    async with sender_to(url) as sender:
        calls = [sender.send("PING", repeatable=True, timeout_s=LONG_S) for _ in range(3)]
        (error, _), *others = await asyncio.gather(*map(outcome_of, calls))
        assert type(error) is kind
        assert error.final
        assert len({id(error), *(id(other) for other, _ in others)}) == 3
        detailed = traceback.TracebackException.from_exception(error, capture_locals=True)
        return f"{error} {error!r} {''.join(detailed.format())}"


async def test_wrong_password_fails_at_once_and_is_not_shown(own_url: str) -> None:
    async with sender_to(own_url) as sender:
        await sender.send("CONFIG", "SET", "requirepass", "right", repeatable=True)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(own_url))
        for server in (own_url, proxy.url):
            scheme, place = server.split("://")
            for login in (f":{SECRET}@", f"me:{SECRET}@", f"default:{SECRET}@"):
                shown = await login_problem(f"{scheme}://{login}{place}")
                assert "username-password" in shown
                # The address that the test itself holds does not count.
                assert SECRET not in shown.replace(f"{login}{place}", "")
            assert "Authentication required" in await login_problem(server)
            async with sender_to(f"{scheme}://:right@{place}") as sender:
                assert await sender.send("ECHO", "in", repeatable=True) == b"in"


async def test_unknown_database_fails_at_once(own_url: str) -> None:
    shown = await login_problem(f"{own_url}?db=9999", BackendUnavailable)
    assert "DB index is out of range" in shown


async def test_sender_recovers_when_the_password_is_put_right(own_url: str) -> None:
    async with sender_to(own_url) as admin, sender_to(own_url) as sender:
        await admin.send("CONFIG", "SET", "requirepass", "right", repeatable=True)
        with pytest.raises(AuthenticationFailed):
            await sender.send("PING", repeatable=True)
        await admin.send("CONFIG", "SET", "requirepass", "", repeatable=True)
        assert await sender.send("ECHO", "in", repeatable=True) == b"in"


async def test_server_that_loads_its_data_is_waited_for() -> None:
    with short_directory() as directory:
        with run_server(directory) as url:
            async with sender_to(url) as sender:
                for number in range(600):
                    sender.send("SET", f"key {number}", "x" * 100, repeatable=True)
                await sender.send("SAVE", repeatable=True)
        slow = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
        with run_server(directory, *slow) as url:
            async with sender_to(url) as sender:
                early = sender.send("GET", "key 1", repeatable=False, timeout_s=0.5)
                late = sender.send("GET", "key 1", repeatable=False)
                error, _ = await outcome_of(early)
                assert type(error) is BackendUnavailable
                assert "loading" in str(error)
                assert await late == b"x" * 100


async def test_calls_survive_a_restart_of_the_server() -> None:
    with short_directory() as directory:
        async with AsyncExitStack() as stack:
            with run_server(directory) as url:
                sender = await stack.enter_async_context(sender_to(url))
                await sender.send("PING", repeatable=True)
            calls = [sender.send("RPUSH", "list", number, repeatable=True) for number in range(300)]
            with run_server(directory):
                assert await asyncio.gather(*calls) == list(range(1, 301))


async def test_refusal_of_a_repeated_call_is_outcome_unknown(own_url: str) -> None:
    async with Proxy(own_url) as proxy, sender_to(proxy.url) as sender, sender_to(own_url) as admin:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        call = sender.send("RPUSH", "list", "x", repeatable=True)
        await eventually(lambda: has(admin, "list", 1), "the server has executed the call")
        await admin.send("CONFIG", "SET", "maxmemory", 1, repeatable=True)
        proxy.silence(silent=False)
        assert proxy.cut()
        with pytest.raises(OutcomeUnknown, match="refused when repeated"):
            await call


async def test_waiting_call_that_was_sent_before_is_outcome_unknown_when_login_fails(
    own_url: str,
) -> None:
    async with Proxy(own_url) as proxy, sender_to(proxy.url) as sender, sender_to(own_url) as admin:
        await sender.send("PING", repeatable=True)
        proxy.silence()
        sent = sender.send("RPUSH", "list", "x", repeatable=True)
        await eventually(lambda: has(admin, "list", 1), "the server has executed the call")
        await admin.send("CONFIG", "SET", "requirepass", "right", repeatable=True)
        proxy.silence(silent=False)
        assert proxy.cut()
        assert type((await outcome_of(sent))[0]) is OutcomeUnknown
        unsent = sender.send("RPUSH", "list", "x", repeatable=True)
        assert type((await outcome_of(unsent))[0]) is AuthenticationFailed


async def test_command_that_makes_the_server_hang_up_neither_loops_nor_harms(own_url: str) -> None:
    async with sender_to(own_url) as sender:
        await sender.send("CONFIG", "SET", "proto-max-bulk-len", 1 << 20, repeatable=True)
        bad = sender.send("ECHO", bytes(2 << 20), repeatable=True, timeout_s=1)
        after = sender.send("ECHO", "after", repeatable=True)
        error, _ = await outcome_of(bad)
        assert isinstance(error, CommandRefused | OutcomeUnknown)
        assert await after == b"after"
        assert 2 <= sender.connections < 20


async def test_close_during_the_handshake_does_not_wait_for_it(url: str) -> None:
    async with Proxy(url) as proxy, sender_to(proxy.url, connect_timeout_s=LONG_S) as sender:
        proxy.deafen()
        call = sender.send("PING", repeatable=True, timeout_s=LONG_S)
        await eventually(lambda: proxy.swallowed > 0, "the sender is in the handshake")
        await sender.aclose(drain_s=0.05)
        with pytest.raises(BackendUnavailable, match="closed"):
            await call


def failing_sender(url: str, fail: Callable[[], Exception | None]) -> Sender:
    return Sender(FailingLocator(url, fail), shown_as="here")


@pytest.mark.role("any", why="it sends ECHO")
async def test_address_that_cannot_be_made_fails_calls_as_it_says(url: str) -> None:
    problems = [ConfigError("there is no server to start")]
    sender = failing_sender(url, lambda: problems.pop() if problems else None)
    calls = [sender.send("PING", repeatable=True) for _ in range(2)]
    for call in calls:
        with pytest.raises(ConfigError, match=r"^there is no server to start$"):
            await call
    assert await sender.send("ECHO", "on", repeatable=True) == b"on"
    await sender.aclose()


@pytest.mark.role("any", why="it sends ECHO")
async def test_a_server_that_cannot_be_used_any_more_is_away_for_now(url: str) -> None:
    problems = list[Exception]()
    async with Proxy(url) as proxy:
        sender = failing_sender(proxy.url, lambda: problems[-1] if problems else None)
        await sender.send("PING", repeatable=True)
        problems.append(ConfigError("it is not what the settings demand"))
        await eventually(lambda: proxy.cut() == 0, "no connection is left")
        waits = sender.send("ECHO", "on", repeatable=True, timeout_s=LONG_S)
        with pytest.raises(BackendUnavailable, match="here: it is not what the settings demand"):
            await sender.send("ECHO", "late", repeatable=True, timeout_s=0.2)
        problems.clear()
        assert await waits == b"on"
        await sender.aclose()


@pytest.mark.role("any", why="it sends ECHO")
async def test_unexpected_error_is_logged_and_leaves_no_caller_hanging(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    problems = [RuntimeError("a bug")]
    sender = failing_sender(url, lambda: problems.pop() if problems else None)
    calls = [sender.send("PING", repeatable=True) for _ in range(2)]
    for call in calls:
        with pytest.raises(BackendUnavailable, match="RuntimeError"):
            await call
    assert [record.exc_text for record in caplog.records if record.levelno == logging.ERROR]
    assert await sender.send("ECHO", "on", repeatable=True) == b"on"
    await sender.aclose()


@pytest.mark.role("any", why="it sends ECHO")
async def test_unexpected_error_of_the_reader_leaves_no_caller_hanging(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sender_to(url) as sender:
        await sender.send("PING", repeatable=True)

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as planted:
            planted.setattr(sender, "_refused", broken)
            sender.send("NOSUCHCOMMAND", repeatable=True)
            error, _ = await outcome_of(sender.send("PING", repeatable=True))
        assert isinstance(error, BackendError)
        assert "a bug" in caplog.text
        assert await sender.send("ECHO", "on", repeatable=True) == b"on"


@pytest.mark.role("any", why="it sends ECHO")
async def test_sender_whose_task_was_cancelled_starts_again(url: str) -> None:
    async with sender_to(url) as sender:
        await sender.send("PING", repeatable=True)
        (serving,) = (
            task for task in asyncio.all_tasks() if task.get_name() == "redis_state sender"
        )
        serving.cancel()
        await asyncio.wait({serving})
        assert await sender.send("ECHO", "on", repeatable=True) == b"on"
