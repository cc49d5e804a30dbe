"""Users by `redis_state.rights`: all that they need, and nothing of another namespace."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendError, CommandRefused, ConfigError, RedisStateError
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.rights import Role, UserRule, commands_of, user_rule
from redis_state.testing import eventually
from redis_state.transport.commands import COMMANDS, Commands
from redis_state.transport.keys import Keys
from redis_state.transport.sending.sender import Sender
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from redis_state.worker.arq.cron import cleanup_cron
from redis_state.worker.tasks.recorded.journal import Journals
from tests.support.processes.pools import SESSION, becomes, open_token, serving
from tests.support.samples import task as make_task
from tests.support.samples import update as make_update
from tests.support.script_calls import CALLS
from tests.support.servers.faults import sender_to

pytestmark = pytest.mark.server
PASSWORD = "s3cret"
# Scripts call them in states that the samples are not in.
_RARE = {"LREM", "LTRIM", "PERSIST", "RENAME", "XREVRANGE"}
# No user can be refused these.
_FREE = {"AUTH", "HELLO"}


@pytest.fixture
async def admin(own_url: str) -> AsyncIterator[Sender]:
    async with sender_to(own_url) as opened:
        yield opened


async def let_in(admin: Sender, rule: UserRule) -> None:
    user, *words = rule.words()
    given = ("reset", f">{PASSWORD}", *words)
    await admin.send("ACL", "SETUSER", user, *given, repeatable=True)
    await admin.send("ACL", "LOG", "RESET", repeatable=True)


async def refused(admin: Sender) -> list[str]:
    """List what users were refused."""
    rows: list[list[Any]] = await admin.send("ACL", "LOG", "100", repeatable=True)
    found = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return sorted({f"{row[b'reason'].decode()} {row[b'object'].decode()}" for row in found})


def settings_of(own_url: str, rule: UserRule, namespace: str) -> Settings:
    url = own_url.replace("unix://", f"unix://{rule.user}:{PASSWORD}@")
    return Settings(url=SecretStr(url), namespace=namespace)


async def ask(context: TaskContext) -> bool:
    await context.step("one", lambda: "done")
    decision = await context.approval("go?", {})
    return decision.approved


async def noop(_: TaskContext) -> str:
    return "done"


class NothingToClean:
    """Counts its calls."""

    calls = 0

    async def cleanup_old_tasks(self, older_than: timedelta) -> int:
        del older_than
        self.calls += 1
        return 0


async def do_all(settings: Settings) -> None:
    """Run every script and a pool."""
    cleaner = NothingToClean()
    cron = cleanup_cron(cleaner, hour=None, minute=None, second=None, run_at_startup=True)
    worker = AgentWorker({"ask": ask}, settings, poll_s=0.01, crons=[cron])
    async with RedisStateStore(settings) as store, TaskClient(store) as client, serving(worker):
        for call in CALLS.values():
            await call(store.base.scripts, store.base.keys)
        await store.health()
        async with RedisStateStore(settings.model_copy(update={"max_rows_per_stream": 1})) as short:
            await short.streams.create("trimmed", data=b"first")
            await short.streams.append("trimmed", b"second")
        for command in (
            *(("GETEX", "t:x"), ("ZRANGEBYLEX", "t:x", "-", "+"), ("ZREVRANGE", "t:x", 0, 1)),
            *(
                ("ZREVRANGEBYSCORE", "t:x", "+inf", "-inf"),
                ("HSCAN", "t:x", 0),
                ("ZSCAN", "t:x", 0),
            ),
        ):
            await store.transport.sender.send(*command, repeatable=True)
        other = settings.url.get_secret_value() + "?db=1"
        async with RedisStateStore.from_url(other, namespace="t") as elsewhere:
            await elsewhere.save_update(make_update("there"))
        task = await client.submit("ask", session_id=SESSION)
        await client.approve(await open_token(store, task), actor="me")
        await becomes(client, task, TaskStatus.COMPLETE)
        low = await client.submit("nobody", session_id=SESSION, priority=1, queue="acl:none")
        await client.steer(SESSION, low, SteeringEventType.PRIORITIZE, {"priority": 2})
        await client.cancel(SESSION, low)
        await eventually(lambda: cleaner.calls > 0, "cron has run")
        async with aclosing(store.watch_updates(SESSION, task_id=task)) as rows:
            assert (await anext(rows)).value.task_id == task
        log = store.updates.keys(SESSION).rows
        about = await store.transport.sender.send("XINFO", "STREAM", log, repeatable=True)
        last = dict(zip(about[::2], about[1::2], strict=True))[b"last-generated-id"]
        await store.transport.sender.send("XSETID", log, last, repeatable=True)


async def test_a_store_and_a_pool_work_as_their_user_and_are_refused_nothing(
    own_url: str, admin: Sender
) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    rule = user_rule(plain, Role.WORKER)
    await let_in(admin, rule)
    await do_all(settings_of(own_url, rule, "t"))
    assert await refused(admin) == []


async def test_a_job_that_arqs_own_runner_has_put_holds_up_no_other_jobs_end(
    own_url: str, admin: Sender
) -> None:
    rule = user_rule(Settings(url=SecretStr(own_url), namespace="t"), Role.WORKER)
    await let_in(admin, rule)
    settings, queue = settings_of(own_url, rule, "t"), Keys("t").queue("tasks").queue
    # As it names cron jobs: beyond the rights of a worker of ours.
    job = "cron:clean:1760000000123"
    await admin.send("SET", f"arq:job:{job}", b"x", "PX", 60_000, repeatable=True)
    await admin.send("ZADD", queue, 1, job, repeatable=True)
    worker = AgentWorker({"noop": noop}, settings, poll_s=0.01)
    async with RedisStateStore(settings) as store, TaskClient(store) as client, serving(worker):

        async def all_ended() -> bool:
            return not await admin.send("EXISTS", queue, f"{queue}:claims", repeatable=True)

        task = await client.submit("noop", session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
        await eventually(all_ended, "nothing waits and nothing is claimed")


@pytest.mark.parametrize(
    "name",
    ["HSET", *(pytest.param(each, marks=pytest.mark.full) for each in commands_of(Role.WORKER))],
)
async def test_without_one_of_the_commands_something_is_refused(
    own_url: str, admin: Sender, name: str
) -> None:
    if name in _RARE | _FREE:
        pytest.skip("a rare state of a script, or free for all")
    plain = Settings(url=SecretStr(own_url), namespace="t")
    await let_in(admin, user_rule(plain, Role.WORKER))
    await admin.send("ACL", "SETUSER", "t-worker", f"-{name.lower()}", repeatable=True)
    settings = settings_of(own_url, user_rule(plain, Role.WORKER), "t").model_copy(
        update={"call_timeout_s": 1.0, "connect_timeout_s": 1.0}
    )
    try:
        async with asyncio.timeout(5):
            await do_all(settings)
    except (RedisStateError, AssertionError, TimeoutError):
        pass
    assert any(name.lower() in each for each in await refused(admin))


async def test_a_watcher_reads_and_follows_and_changes_nothing(own_url: str, admin: Sender) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    rule = user_rule(plain, Role.WATCHER)
    await let_in(admin, rule)
    async with (
        RedisStateStore(plain) as store,
        RedisStateStore(settings_of(own_url, rule, "t")) as watcher,
    ):
        await store.save_update(make_update("first"))
        rows = watcher.watch_updates("session")
        assert (await anext(rows)).value.update_id == "first"
        following = asyncio.create_task(anext(rows))
        await store.save_update(make_update("second"))
        assert (await following).value.update_id == "second"
        await rows.aclose()
        assert len(await watcher.list_updates("session")) == 2
        assert await watcher.list_tasks("session") == []
        await store.streams.create("stream", data=b"row")
        assert (await watcher.streams.read("stream")).rows == (b"row",)
        artifact = await store.artifact_store.put_text("text")
        assert await watcher.artifact_store.get(artifact.id) == b"text"
        await watcher.drain()
        await store.save_task(make_task("task"))
        journal = Journals(watcher.base).read(watcher.tasks.keys("session", "task"))
        assert await journal == ({}, 0)
        assert await refused(admin) == []
        with pytest.raises(CommandRefused, match="not permitted"):
            await watcher.save_update(make_update("third"))
        with pytest.raises(CommandRefused, match="not permitted"):
            await watcher.streams.append("stream", b"another")
        assert len(await store.list_updates("session")) == 2


async def test_nothing_of_another_namespace_can_be_reached(own_url: str, admin: Sender) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    rule = user_rule(plain, Role.ADMIN)
    await let_in(admin, rule)
    async with (
        RedisStateStore(plain.model_copy(update={"namespace": "tb"})) as theirs,
        RedisStateStore(settings_of(own_url, rule, "t")) as store,
    ):
        for call in CALLS.values():
            await call(theirs.base.scripts, Keys("tb"))
        keys: bytes = await admin.send("DBSIZE", repeatable=True)
        for call in CALLS.values():
            with pytest.raises(CommandRefused, match="not permitted"):
                await call(store.base.scripts, Keys("tb"))
        send = store.transport.sender.send
        with pytest.raises(CommandRefused):
            await send("EVAL", "return redis.call('GET', 'tb:x')", 0, repeatable=True)
        for command in (
            *(("KEYS", "*"), ("CONFIG", "GET", "*"), ("FLUSHALL",), ("MONITOR",), ("ACL", "LIST")),
            *(("COPY", "t:a", "tb:a"), ("RENAME", "t:a", "tb:a"), ("PUBLISH", "tb:c", "x")),
            *(("SORT", "t:a", "GET", "tb:*"), ("DUMP", "tb:a"), ("CLIENT", "LIST"), ("DBSIZE",)),
            *(
                ("GET", "arq:job:{queues-tb}/s/t:0"),
                ("ZRANGE", "tb:v1:x", 0, -1),
                ("SPUBLISH", "tb", "x"),
            ),
        ):
            with pytest.raises(CommandRefused):
                await send(*command, repeatable=True)
        with pytest.raises(BackendError, match="not permitted"):
            await store.transport.subscriber.subscribe("tb:c").next()
        assert await admin.send("DBSIZE", repeatable=True) == keys


async def test_an_admin_deletes_a_namespace(own_url: str, admin: Sender) -> None:
    plain = Settings(url=SecretStr(own_url), namespace="t")
    rule = user_rule(plain, Role.ADMIN)
    await let_in(admin, rule)
    async with RedisStateStore(settings_of(own_url, rule, "t")) as store:
        await store.save_update(make_update("first"))
        await store.delete_everything()
    assert await refused(admin) == []
    assert await admin.send("DBSIZE", repeatable=True) == 0


def test_the_single_commands_are_those_that_the_code_sends() -> None:
    source = inspect.getsource(inspect.getmodule(Commands) or Commands)
    sent = re.findall(r'(?:_send|_scan|packed_command)\(\s*\*?\(?"([A-Z]+)"', source)
    assert set(sent) == set(COMMANDS)


@pytest.mark.parametrize("name", ["a b", "a*", "~", "a\n", "[a]", ""])
def test_a_name_that_would_reach_further_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="characters"):
        user_rule(Settings(), Role.APP, user=name or " ")
    with pytest.raises(ConfigError, match="characters"):
        user_rule(Settings(namespace=name), Role.APP)
