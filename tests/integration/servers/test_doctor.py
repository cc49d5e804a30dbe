"""What `redis_state.doctor` finds on servers that have what it looks for."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import quote

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, TaskClient
from redis_state.doctor import Finding, Verdict, examine
from redis_state.doctor.questions import writes
from redis_state.errors import BackendUnavailable, InvalidField, NoConnection, StoreFull
from redis_state.primitives.watchlist.watchlist import ENDED_MS, WatchList, check_after
from redis_state.rights import Role, user_rule
from redis_state.settings import make_settings
from redis_state.testing import eventually
from redis_state.transport.sending.sender import Sender
from redis_state.worker import AgentWorker
from tests.support.processes.pools import serving
from tests.support.samples import update as make_update
from tests.support.scripts.replies import HOUR
from tests.support.servers.faults import (
    Proxy,
    certificate,
    run_server,
    sender_to,
    short_directory,
    tls_server_context,
)
from tests.support.servers.sets.clusters import running_cluster

pytestmark = pytest.mark.server

_BUFFERS = "client-output-buffer-limit"
_ROOM = ("--maxmemory", "1gb")
_SHORT = {"call_timeout_s": 0.3}
_DISK = ("writes", "persistence")


@pytest.fixture
async def admin(own_url: str) -> AsyncIterator[Sender]:
    async with sender_to(own_url) as opened:
        # As `docs/guides/servers.md` has it.
        await opened.send("CONFIG", "SET", "appendonly", "yes", repeatable=True)
        await opened.send("CONFIG", "SET", "maxmemory", "1gb", repeatable=True)
        yield opened


def settings_of(url: str) -> Settings:
    return Settings(url=SecretStr(url), namespace="t")


async def findings(url: str, **options: Any) -> dict[str, Finding]:
    """Return what was found, by question."""
    found = await examine(make_settings(url, namespace="t", **options))
    return {each.question: each for each in found if each.state is Verdict.FINDING}


async def test_a_sound_server_has_no_finding_and_an_answer_to_each_question(
    own_url: str, admin: Sender
) -> None:
    assert admin.connections
    async with RedisStateStore(settings_of(own_url)) as store:
        await store.save_update(make_update("one"))
    found = await examine(settings_of(own_url))
    assert {each.state for each in found} == {Verdict.SOUND}
    assert {each.question for each in found} == {
        *("version", "role", "memory", "persistence", "replicas", "clock", "lifetimes"),
        *("rights", "queue", "jobs", "tasks", "clients", "replies", "writes"),
    }


@pytest.mark.parametrize(
    ("delay_ms", "says"),
    [
        (0, "may need a repair has been due for 120 minutes"),
        (check_after(0), "only checked has been due for 120 minutes"),
        (ENDED_MS, "ended has been due for 120 minutes"),
    ],
)
async def test_sweepers_that_are_late_are_found(own_url: str, delay_ms: int, says: str) -> None:
    async with RedisStateStore(settings_of(own_url)) as store:
        watch = WatchList(store.base.scripts, store.base.keys)
        await watch.put(b"e", delay_ms=HOUR)
        assert "sweeping" not in await findings(own_url)
        await watch.put(b"e", delay_ms=delay_ms - 2 * HOUR, sooner=True)
    assert says in (await findings(own_url))["sweeping"].says


@pytest.mark.parametrize(
    ("guarantee", "says"),
    [("durable", "appendfsync is everysec"), ("replicated", "0 of 1 replicas are connected")],
)
async def test_a_server_that_cannot_promise_the_class_of_the_settings_is_found(
    own_url: str, admin: Sender, guarantee: str, says: str
) -> None:
    assert says in (await findings(own_url, guarantee=guarantee))["guarantee"].says
    await admin.send("CONFIG", "SET", "appendfsync", "always", repeatable=True)
    found = await examine(make_settings(own_url, namespace="t", guarantee="durable"))
    assert {each.state for each in found} == {Verdict.SOUND}
    assert "guarantee" in {each.question for each in found}


@pytest.mark.parametrize(
    ("question", "command", "says"),
    [
        ("memory", "CONFIG SET maxmemory-policy allkeys-lru", "allkeys-lru"),
        ("memory", "CONFIG SET maxmemory {used}", "of maxmemory is used"),
        ("memory", "CONFIG SET maxmemory 0", "maxmemory is 0"),
        ("persistence", "CONFIG SET appendonly no", "appendonly is no"),
        ("persistence", "CONFIG SET appendfsync no", "appendfsync is no"),
        ("replies", f"CONFIG SET {_BUFFERS} 'normal 524288 262144 60'", "262,144 bytes"),
        ("lifetimes", "SET t:v1:stays x", "t:v1:stays"),
        ("role", "REPLICAOF 127.0.0.1 1", "replica"),
    ],
)
async def test_each_danger_is_found_with_what_to_do(
    own_url: str, admin: Sender, question: str, command: str, says: str
) -> None:
    memory: bytes = await admin.send("INFO", "memory", repeatable=True)
    used = memory.partition(b"used_memory:")[2].split()[0].decode()
    await admin.send(*shlex.split(command.format(used=used)), repeatable=True)
    found = await findings(own_url)
    assert list(found) == [question]
    assert says in found[question].says
    assert found[question].means
    assert found[question].do


async def test_a_server_that_soon_takes_no_connection_is_found(own_url: str, admin: Sender) -> None:
    await admin.send("CONFIG", "SET", "maxclients", "30", repeatable=True)
    async with AsyncExitStack() as held:
        for _ in range(27):
            holder = await held.enter_async_context(sender_to(own_url))
            await holder.send("PING", repeatable=True)
        await eventually(lambda: _has_clients(admin, 28), "the server counts them")
        found = await findings(own_url)
    assert list(found) == ["clients"]
    assert " of 30 connections are taken" in found["clients"].says


@pytest.mark.parametrize("rule", ["reset", "-@write", "resetkeys ~cache:*"])
async def test_a_default_user_whose_rights_would_drop_writes_at_a_restart_is_found(
    own_url: str, admin: Sender, rule: str
) -> None:
    await admin.send(*["ACL", "SETUSER", "op", "on", ">pw", "~*", "&*", "+@all"], repeatable=True)
    url = own_url.replace("unix://", "unix://op:pw@")
    await admin.send("ACL", "SETUSER", "default", *rule.split(), repeatable=True)
    found = await findings(url)
    assert list(found) == ["persistence"]
    assert found["persistence"].says == "the user default may not write"
    rule, _, _ = found["persistence"].do.partition(",")
    async with sender_to(url) as operator:
        await operator.send(*rule.split(), repeatable=True)
    assert await findings(url) == {}


async def test_a_sample_bounds_the_keys_that_are_examined_and_all_is_all(
    own_url: str, admin: Sender
) -> None:
    others = "for n = 1, 30000 do redis.call('SET', 'o:' .. n, 'x') end"
    await admin.send("EVAL", others, 0, repeatable=True)
    await admin.send("SET", "t:v1:stays", "x", repeatable=True)
    reports: list[tuple[str, int, int | None]] = []

    def tell(server: str, examined: int, total: int | None) -> None:
        reports.append((server, examined, total))

    async def lifetimes(sample: int | None) -> tuple[Finding, int]:
        before = await _called(admin, "scan")
        found = await examine(settings_of(own_url), sample=sample, progress=tell)
        (answer,) = (each for each in found if each.question == "lifetimes")
        return answer, await _called(admin, "scan") - before

    # The question for orphans scans 20,000 keys too.
    few, calls = await lifetimes(1_200)
    assert (few.examined, few.total) == (1_200, 30_001)
    assert "1,200 of 30,001 keys of the server were examined" in few.says
    assert reports == [(few.server, n, 30_001) for n in (500, 1_000, 1_200)]
    reports.clear()
    every, more = await lifetimes(None)
    assert every.state is Verdict.FINDING
    assert (every.examined, every.total) == (30_001, 30_001)
    assert more - calls >= 50
    assert reports[-1] == (every.server, 30_001, 30_001)
    with pytest.raises(InvalidField, match="sample"):
        await examine(settings_of(own_url), sample=0)


async def _has_clients(admin: Sender, least: int) -> bool:
    stated: bytes = await admin.send("INFO", "clients", repeatable=True)
    return int(stated.partition(b"connected_clients:")[2].split()[0]) >= least


async def _called(admin: Sender, command: str) -> int:
    stated: bytes = await admin.send("INFO", "commandstats", repeatable=True)
    return int(stated.partition(f"cmdstat_{command}:calls=".encode())[2].partition(b",")[0] or 0)


async def test_a_replica_without_a_demand_for_it_is_found(
    own_url: str, admin: Sender, unused_tcp_port: int
) -> None:
    await admin.send("CONFIG", "SET", "port", unused_tcp_port, repeatable=True)
    await admin.send("CONFIG", "SET", "repl-diskless-sync-delay", 0, repeatable=True)
    with (
        short_directory() as directory,
        run_server(directory, "--replicaof", "127.0.0.1", str(unused_tcp_port)),
    ):

        async def followed() -> bool:
            stated: bytes = await admin.send("INFO", "replication", repeatable=True)
            return b"state=online" in stated

        await eventually(followed, "it has a replica")
        assert "min-replicas" in (await findings(own_url))["replicas"].says
        await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
        assert await findings(own_url) == {}


async def test_what_a_user_may_not_ask_is_unknown_and_what_it_lacks_is_named(
    own_url: str, admin: Sender
) -> None:
    rule = user_rule(settings_of(own_url), Role.APP)
    user, *words = rule.words()
    await admin.send("ACL", "SETUSER", user, *words, ">pw", repeatable=True)
    narrow = own_url.replace("unix://", f"unix://{user}:pw@")
    answers = await examine(settings_of(narrow))
    unknown = {each.question: each.do for each in answers if each.state is Verdict.UNKNOWN}
    assert unknown.keys() == {"persistence", "replies", "lifetimes", "tasks"}
    assert all("--url and a user who has it" in do for do in unknown.values())
    assert Verdict.FINDING not in {each.state for each in answers}
    for less, named in (
        (("-hset",), "not use HSET"),
        (("+hset", "resetchannels"), "not use SPUBLISH, SSUBSCRIBE"),
        (("&t:*", "resetkeys", "~t:*"), "not use the keys arq:*:{queues-t}/*"),
        (("resetkeys", "~tb:*"), "not use the keys t:*"),
        (("~*", "-eval"), "not use EVAL"),
    ):
        await admin.send("ACL", "SETUSER", user, *less, repeatable=True)
        said = (await findings(narrow))["rights"]
        assert said.says == f"the user may {named}"


async def test_a_refused_question_leaves_what_was_found_before_it(
    own_url: str, admin: Sender, unused_tcp_port: int, tmp_path: Path
) -> None:
    user, *words = user_rule(settings_of(own_url), Role.APP).words()
    await admin.send("ACL", "SETUSER", user, *words, ">pw", repeatable=True)
    narrow = own_url.replace("unix://", f"unix://{user}:pw@")
    await admin.send("CONFIG", "SET", "port", unused_tcp_port, repeatable=True)
    await admin.send("CONFIG", "SET", "repl-diskless-sync-delay", 100, repeatable=True)
    with (
        short_directory() as directory,
        run_server(directory, "--replicaof", "127.0.0.1", str(unused_tcp_port)),
    ):

        async def waits() -> bool:
            stated: bytes = await admin.send("INFO", "replication", repeatable=True)
            return b"state=wait_bgsave" in stated

        await eventually(waits, "a replica waits for its first copy")
        found = [each for each in await examine(settings_of(narrow)) if each.question == "replicas"]
    assert [each.state for each in found] == [Verdict.FINDING, Verdict.UNKNOWN]
    assert "not in sync" in found[0].says
    assert "config" in found[1].says
    # Who may not count what waits for the archive learns all else.
    await admin.send("ACL", "SETUSER", user, "-zcard", repeatable=True)
    archive = SecretStr(f"file://{tmp_path}")
    answers = await examine(settings_of(narrow).model_copy(update={"archive_url": archive}))
    states = {each.state for each in answers if each.question == "archive"}
    assert states == {Verdict.UNKNOWN, Verdict.FINDING}


async def test_a_primary_that_refuses_writes_for_want_of_replicas_is_found(
    own_url: str, admin: Sender
) -> None:
    await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
    async with RedisStateStore(settings_of(own_url).model_copy(update=_SHORT)) as store:
        with pytest.raises(BackendUnavailable, match="too few replicas"):
            await store.save_update(make_update("one"))
    found = await findings(own_url)
    assert list(found) == ["writes"]
    assert found["writes"].says == "0 replicas keep up, fewer than min-replicas-to-write"
    user, *words = user_rule(settings_of(own_url), Role.APP).words()
    await admin.send("ACL", "SETUSER", user, *words, ">pw", repeatable=True)
    narrow = await findings(own_url.replace("unix://", f"unix://{user}:pw@"))
    assert list(narrow) == ["writes"]
    await admin.send("CONFIG", "SET", "min-replicas-to-write", 0, repeatable=True)
    assert await findings(own_url) == {}


async def lose_replicas(admin: Sender, _: Path) -> None:
    await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)


async def lose_snapshots(admin: Sender, directory: Path) -> None:
    # A folder stands where the file would.
    (directory / "dump.rdb" / "x").mkdir(parents=True)
    await admin.send("BGSAVE", repeatable=True)
    await _becomes(admin, "rdb_last_bgsave_status", "err")


async def lose_the_disk(admin: Sender, directory: Path) -> None:
    """Have the server begin an appendonly file on a disk that is full."""
    (directory / "appendonlydir" / "appendonly.aof.2.incr.aof").symlink_to("/dev/full")
    await admin.send("BGREWRITEAOF", repeatable=True)
    await admin.send("SET", "t:k", "x", "PX", 60_000, repeatable=True)
    await _becomes(admin, "aof_last_write_status", "err")


async def lose_rewrites(admin: Sender, directory: Path) -> None:
    (directory / "appendonlydir" / "appendonly.aof.2.base.rdb" / "x").mkdir(parents=True)
    await admin.send("BGREWRITEAOF", repeatable=True)
    await _becomes(admin, "aof_last_bgrewrite_status", "err")


async def _becomes(admin: Sender, field: str, value: str) -> None:
    async def stands() -> bool:
        stated: bytes = await admin.send("INFO", "persistence", repeatable=True)
        return f"{field}:{value}\r".encode() in stated

    await eventually(stands, f"{field} is {value}")


@pytest.mark.parametrize("lose", [lose_replicas, lose_snapshots, lose_the_disk])
async def test_a_server_that_refuses_writes_is_found_also_if_it_is_the_queues_own(
    own_url: str, admin: Sender, lose: Callable[[Sender, Path], Awaitable[None]]
) -> None:
    assert admin.connections
    options = ("--appendonly", "yes", "--save", "3600 1", *_ROOM)
    with short_directory() as directory, run_server(directory, *options) as url:
        assert await findings(own_url, queue_url=SecretStr(url)) == {}
        async with sender_to(url) as its:
            await lose(its, directory)
            with pytest.raises((BackendUnavailable, StoreFull)):
                await its.send("SET", "t:l", "x", "PX", 1, repeatable=True, timeout_s=0.3)
        for found in (await findings(url), await findings(own_url, queue_url=SecretStr(url))):
            assert list(found) == ["writes"]
            assert found["writes"].server == url
            assert "refuses every write" in found["writes"].means


async def test_a_snapshot_that_failed_is_found_where_no_write_is_refused_for_it() -> None:
    with (
        short_directory() as directory,
        run_server(directory, "--appendonly", "yes", *_ROOM) as url,
    ):
        async with sender_to(url) as admin:
            await lose_snapshots(admin, directory)
        found = await findings(url)
        assert list(found) == ["persistence"]
        assert found["persistence"].says == "rdb_last_bgsave_status is err"


async def test_a_rewrite_that_failed_is_found_while_there_is_an_appendonly_file() -> None:
    with (
        short_directory() as directory,
        run_server(directory, "--appendonly", "yes", *_ROOM) as url,
    ):
        async with sender_to(url) as admin:
            await lose_rewrites(admin, directory)
            answers = [each for each in await examine(settings_of(url)) if each.question in _DISK]
            assert [(each.question, each.state) for each in answers] == [
                ("writes", Verdict.SOUND),
                ("persistence", Verdict.FINDING),
            ]
            assert answers[1].says == "aof_last_bgrewrite_status is err"
            # What it says of a file that is no more matters to nobody.
            await admin.send("CONFIG", "SET", "appendonly", "no", repeatable=True)
            found = (await findings(url))["persistence"]
            assert found.says == "appendonly is no"


async def test_a_replica_that_is_connected_and_silent_is_found(
    own_url: str, admin: Sender, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_SILENT_S", 1)
    for setting, value in (
        ("port", unused_tcp_port),
        ("repl-diskless-sync-delay", 0),
        ("min-replicas-to-write", 1),
    ):
        await admin.send("CONFIG", "SET", setting, value, repeatable=True)
    with (
        short_directory() as directory,
        run_server(directory, "--replicaof", "127.0.0.1", str(unused_tcp_port)) as replica,
    ):

        async def replicas() -> Finding | None:
            return (await findings(own_url)).get("replicas")

        async def keeps_up() -> bool:
            return await findings(own_url) == {}

        await eventually(keeps_up, "it has a replica")
        async with sender_to(replica) as its:
            stated: bytes = await its.send("INFO", "server", repeatable=True)
        pid = int(stated.partition(b"process_id:")[2].split()[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            found = await eventually(replicas, "it is silent")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert found is not None
        assert "has been silent for" in found.says
        assert "loses acknowledged writes" in found.means
        await eventually(keeps_up, "it keeps up again")


async def test_a_service_whose_settings_are_closed_may_be_trusted_to_keep_what_it_has(
    own_url: str, admin: Sender
) -> None:
    for setting, value in (("appendonly", "no"), ("maxmemory", "0")):
        await admin.send("CONFIG", "SET", setting, value, repeatable=True)
    closed = ("ACL", "SETUSER", "agent", "on", ">pw", "~*", "&*", "+@all", "-config")
    await admin.send(*closed, repeatable=True)
    url = own_url.replace("unix://", "unix://agent:pw@")
    found = await findings(url)
    assert list(found) == ["persistence"]
    assert "durable_trusted" in found["persistence"].do
    trusting = make_settings(url, namespace="t", guarantee="durable", durable_trusted=True)
    answers = {each.question: each for each in await examine(trusting)}
    assert Verdict.FINDING not in {each.state for each in answers.values()}
    assert "maxmemory is 0" in answers["memory"].says
    assert "durable_trusted" in answers["persistence"].says
    assert answers["guarantee"].state is Verdict.SOUND
    # One that says how it is set is not believed.
    assert "CONFIG SET" in (await findings(own_url, durable_trusted=True))["persistence"].do


async def test_an_embedded_server_needs_no_limit() -> None:
    with short_directory() as directory:
        assert await findings(f"embedded://{directory}") == {}


@pytest.mark.parametrize("role", list(Role))
async def test_the_user_of_each_role_has_its_rights(
    own_url: str, admin: Sender, role: Role
) -> None:
    user, *words = user_rule(settings_of(own_url), role).words()
    await admin.send("ACL", "SETUSER", user, *words, ">pw", repeatable=True)
    found = await examine(settings_of(own_url.replace("unix://", f"unix://{user}:pw@")))
    (rights,) = (each for each in found if each.question == "rights")
    assert (rights.state, role is Role.WATCHER) == (Verdict.SOUND, "watcher" in rights.says)


async def test_the_queues_own_server_is_asked_too(
    own_url: str, admin: Sender, unused_tcp_port: int
) -> None:
    with short_directory() as directory, run_server(directory, *_ROOM) as url:
        # What it loses is written again.
        own = SecretStr(own_url)
        assert await findings(url, queue_url=own) == {"persistence": ANY}
        policy = ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        await admin.send(*policy, repeatable=True)
        assert "allkeys" in (await findings(url, queue_url=own))["memory"].says
    away = SecretStr(f"redis://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(NoConnection):
        await findings(own_url, queue_url=away, connect_timeout_s=0.2, call_timeout_s=0.5)


async def test_tasks_that_nobody_takes_are_found(own_url: str, admin: Sender) -> None:
    assert admin.connections
    async with RedisStateStore(settings_of(own_url)) as store, TaskClient(store) as client:
        await client.submit("work", session_id="s")
        assert "0 workers" in (await findings(own_url))["queue"].says


async def test_tasks_that_nobody_takes_are_found_in_a_queue_of_any_name(
    own_url: str, admin: Sender
) -> None:
    assert admin.connections
    async with (
        RedisStateStore(settings_of(own_url)) as store,
        TaskClient(store, queue="own") as client,
        serving(AgentWorker({}, settings=settings_of(own_url), queue="another")),
    ):
        await client.submit("work", session_id="s")
        await eventually(lambda: _has_workers(client), "a worker of another queue is there")
        found = (await findings(own_url))["queue"]
        await client.cancel("s", (await client.unfinished())[0].task_id)
    assert (found.server, found.says) == ("own", "1 tasks wait, 0 workers take them")


async def _has_workers(client: TaskClient) -> bool:
    return bool(await client.workers())


async def test_a_certificate_that_expires_soon_is_found(
    own_url: str, admin: Sender, tmp_path: Path
) -> None:
    assert admin.connections
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with Proxy(own_url, tls=tls_server_context(cert, key)) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        assert "expires in" in (await findings(url))["certificate"].says


async def test_a_certificate_of_an_authority_in_the_url_is_read(
    own_url: str, admin: Sender, tmp_path: Path
) -> None:
    assert admin.connections
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with Proxy(own_url, tls=tls_server_context(cert, key)) as proxy:
        data = quote(cert.read_text(), safe="")
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_data={data}"
        assert "expires in" in (await findings(url))["certificate"].says


async def test_each_node_of_a_cluster_is_asked_and_a_slot_that_is_being_moved_is_found() -> None:
    async with running_cluster("--appendonly", "yes", *_ROOM) as cluster:
        assert await findings(cluster.url) == {}
        found = await examine(settings_of(cluster.url))
        servers = {each.server for each in found if each.question == "cluster"}
        assert servers == {f"redis://127.0.0.1:{port}/0" for port in cluster.ports}
        user, *words = user_rule(settings_of(cluster.url), Role.APP, cluster=True).words()
        for port in cluster.ports:
            await cluster.ask(port, "ACL", "SETUSER", user, *words, ">pw", "-asking")
        refused = await findings(cluster.url.replace("://", f"://{user}:pw@"))
        assert refused["rights"].says == "the user may not use ASKING"
        source = await cluster.begin_move(7, cluster.ports[1])
        says = {
            each.server: each.says
            for each in await examine(settings_of(cluster.url))
            if each.state is Verdict.FINDING
        }
        assert "[7->-" in says[f"redis://127.0.0.1:{source}/0"]
        assert "[7-<-" in says[f"redis://127.0.0.1:{cluster.ports[1]}/0"]


async def test_a_server_that_is_away_is_an_error(unused_tcp_port: int) -> None:
    away = settings_of(f"redis://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(NoConnection):
        await examine(away.model_copy(update={"connect_timeout_s": 0.2}))
