"""A worker that the server does not let in, or no longer, and one with only the rights it needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import BackendUnavailable, RedisStateStore, Settings
from redis_state.backoff import Backoff
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from redis_state.worker import TaskContext
from redis_state.worker.pool import serving as runner
from tests.support.commands import begin, end
from tests.support.processes.pools import SESSION, agent, client_of, key_of_queue, pool, serving
from tests.support.servers.faults import Proxy, run_server, sender_to, short_directory

pytestmark = pytest.mark.worker

SECRET = "s3cret"
# What a tenant needs: neither DBSIZE nor a key that it shares with others.
RIGHTS = (
    "~t:* ~arq:*:{queues-t}/* resetchannels &t:* "
    "-@all +auth +hello +select +ping +eval +evalsha +time +info "
    "+spublish +ssubscribe +sunsubscribe "
    "+@hash +@sortedset +@string +@list +@stream +@transaction +exists +pexpire +pexpireat +expire "
    "+pexpiretime +persist +pttl +del +unlink +type"
)


class Own:
    """A server of a test's own behind a proxy, and a user of its."""

    def __init__(self, admin: Sender, proxy: Proxy) -> None:
        self.admin = admin
        self.proxy = proxy

    async def allow(self, rules: str) -> None:
        """Set the rights of the user."""
        await self.admin.send("ACL", "SETUSER", "t", "reset", *rules.split(), repeatable=True)

    def settings(self, password: str = SECRET) -> Settings:
        url = SecretStr(self.proxy.url.replace("redis://", f"redis://t:{password}@"))
        return Settings(url=url, namespace="t")


@pytest.fixture
async def own() -> AsyncIterator[Own]:
    with short_directory() as directory, run_server(directory) as url:
        async with sender_to(url) as admin, Proxy(url) as proxy:
            yield Own(admin, proxy)


async def ask_acl_log(own: Own) -> list[list[bytes]]:
    """Return what the server has refused."""
    found: list[list[bytes]] = await own.admin.send("ACL", "LOG", repeatable=True)
    return found


async def answer(_: TaskContext) -> int:
    return 42


async def run_worker(settings: Settings, folder: Path, *options: str) -> tuple[int | None, str]:
    """Run the command until it ends; give its status and what it said."""
    text = "from redis_state.worker import AgentWorker\nmine = AgentWorker({})\n"
    (folder / "my_pool.py").write_text(text, encoding="utf-8")
    ran = await end(await begin(settings, "worker", "my_pool:mine", *options, folder=folder))
    return ran.status, ran.err


@pytest.mark.parametrize(
    ("rules", "problem", "options", "stops_in"),
    [
        (f"on >other {RIGHTS}", "the user or the password is refused", (), 30),
        (f"on >{SECRET} {RIGHTS} -zrange", "not permitted: ZRANGE", ("--grace", "60.5"), 81),
    ],
    ids=["a wrong password", "a missing right"],
)
async def test_the_command_ends_with_status_5_if_it_was_never_let_in(
    own: Own, tmp_path: Path, rules: str, problem: str, *, options: tuple[str, ...], stops_in: int
) -> None:
    await own.allow(rules)
    status, stated = await run_worker(own.settings(), tmp_path, *options)
    assert status == 5
    assert f"redis-state: {own.proxy.url}: " in stated
    assert problem in stated
    # What it would have served was said before, and how long a supervisor has to wait for its end.
    assert f"serves tasks at {own.proxy.url} with 10 slots; handlers: none" in stated
    assert f"give it {stops_in} s to stop\n" in stated
    assert SECRET not in stated
    assert "Traceback" not in stated


async def test_a_worker_that_was_let_in_waits_and_says_why_once(
    own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_RESTART_S", Backoff(0.02, 0.1))
    await own.allow(f"on >{SECRET} {RIGHTS}")
    settings = own.settings()
    async with (
        RedisStateStore(settings) as store,
        client_of(store) as client,
        serving(agent(settings, {"answer": answer})) as on,
    ):
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        caplog.clear()
        # As when a password is rotated.
        await own.admin.send("ACL", "SETUSER", "t", "resetpass", ">other", repeatable=True)
        assert own.proxy.cut()
        before = own.proxy.accepted
        await eventually(lambda: own.proxy.accepted > before + 8, "it has tried again and again")
        assert not on.done()
        stated = [
            record.getMessage()
            for record in caplog.records
            if record.name == "redis_state.worker.pool.serving"
        ]
        assert len(stated) == 1
        assert own.proxy.url in stated[0]
        assert SECRET not in caplog.text
        await own.admin.send("ACL", "SETUSER", "t", f">{SECRET}", repeatable=True)

        async def answered() -> bool:
            task = await client.submit("answer", session_id=SESSION)
            return bool((await client.wait(SESSION, task, timeout_s=60)).result == 42)

        await eventually(answered, "it takes tasks again")


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(
    own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_RESTART_S", Backoff(0.02, 0.1))
    await own.allow(f"on >{SECRET} {RIGHTS}")
    own.proxy.refuse()
    settings = own.settings()
    async with serving(agent(settings, {"answer": answer})) as on:
        await eventually(lambda: own.proxy.refused > 3, "it has tried")
        assert not on.done()
        own.proxy.refuse(refusing=False)
        async with RedisStateStore(settings) as store, client_of(store) as client:
            task = await client.submit("answer", session_id=SESSION)
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


async def test_a_pool_works_with_the_rights_of_a_tenant_and_nothing_is_refused_to_it(
    own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redis_state.worker")
    await own.allow(f"on >{SECRET} {RIGHTS}")

    async def ask(ctx: TaskContext) -> int:
        await ctx.progress("begun")
        return await ctx.step("answer", lambda: 42)

    settings = own.settings()
    async with (
        RedisStateStore(settings) as store,
        pool(store, {"ask": ask}) as client,
    ):
        for _ in range(3):
            task = await client.submit("ask", session_id=SESSION)
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        unknown = await client.submit("nobody", session_id=SESSION)
        assert (await client.wait(SESSION, unknown, timeout_s=60)).result is None

        async def empty() -> bool:
            left: int = await own.admin.send("ZCARD", key_of_queue(settings), repeatable=True)
            return not left

        await eventually(empty, "the jobs are taken off the queue")
    # redis-py names itself where the server knows how, and may be refused.
    refused = [row[row.index(b"object") + 1] for row in await ask_acl_log(own)]
    assert set(refused) <= {b"client|setinfo"}
    assert await own.admin.send("EXISTS", "arq:abort", repeatable=True) == 0


@pytest.mark.parametrize("right", ["-zrange", "-ssubscribe", "-set", "resetchannels", "resetkeys"])
async def test_a_host_that_serves_by_itself_is_told_of_a_missing_right_at_once_or_goes_on(
    own: Own, right: str
) -> None:
    await own.allow(f"on >{SECRET} {RIGHTS} {right}")
    worker = agent(own.settings(), {"answer": answer})
    serving_it = asyncio.create_task(worker.serve(handle_signals=False))
    if right in {"-zrange", "resetkeys"}:
        with pytest.raises(BackendUnavailable, match="not permitted") as refused:
            await asyncio.wait_for(serving_it, 60)
        assert refused.value.final
        return

    async def requested() -> bool:
        stats = await own.admin.send("INFO", "commandstats", repeatable=True)
        return b"cmdstat_zrange" in stats

    # It polls without being woken, and needs the others for tasks only.
    await eventually(requested, "it polls")
    assert not serving_it.done()
    serving_it.cancel()
    await asyncio.wait({serving_it})
