"""Imports from the savers of the real packages, where they can be had: `make test-savers`.

Each runs on its real store: PostgreSQL, a file, Redis with search and JSON, Valkey. DynamoDB alone
is moto's server, in a process of its own.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

if "REDIS_STATE_SAVERS" not in os.environ:
    pytest.skip("needs their packages: make test-savers", allow_module_level=True)

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from benchmarks.server import BenchServer, stack_server
from benchmarks.tasks.postgres import BenchPostgres
from redis_state import RedisStateStore, Settings
from redis_state.integrations.langgraph import RedisSaver, source_of
from tests.support.agents import graph_sources
from tests.support.agents.graph_sources import fill, put
from tests.support.agents.graphs import adding_deltas, asking, config_of, counting
from tests.support.commands import cli
from tests.support.processes import children
from tests.support.servers.ports import free_port

POSTGRES = "langgraph.checkpoint.postgres"
SQLITE = "langgraph.checkpoint.sqlite"
AWS = "langgraph_checkpoint_aws"

KINDS = [
    "memory",
    "sqlite",
    "sqlite-sync",
    "postgres",
    "postgres-sync",
    "redis",
    "valkey",
    "dynamodb",
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    server = BenchPostgres()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def search() -> Iterator[str]:
    with stack_server(Path(sys.prefix)) as server:
        yield server.url


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with BenchServer() as server:
        yield server.url


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    port = free_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    program = shutil.which("moto_server", path=str(Path(sys.executable).parent))
    assert program is not None
    server = [program, "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    with children.popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _create_table(endpoint)
            yield endpoint
        finally:
            process.kill()


def _create_table(endpoint: str) -> None:
    client = _class("boto3", "client")("dynamodb", region_name="eu-west-1", endpoint_url=endpoint)
    key = [("PK", "HASH"), ("SK", "RANGE")]
    # Its retries wait for the server.
    deadline = time.monotonic() + 60
    while True:
        try:
            client.create_table(
                TableName="checkpoints",
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in key],
                AttributeDefinitions=[
                    {"AttributeName": name, "AttributeType": "S"} for name, _ in key
                ],
                BillingMode="PAY_PER_REQUEST",
            )
        except _class("botocore.exceptions", "EndpointConnectionError"):
            assert time.monotonic() < deadline, "moto's server does not answer"
        else:
            return


def _class(module: str, name: str) -> Any:
    """Import what the type checkers do not find: it is in the session's environment only."""
    return getattr(importlib.import_module(module), name)


async def _opened(  # noqa: PLR0911 - a table
    kind: str, request: pytest.FixtureRequest, folder: Path, stack: AsyncExitStack
) -> tuple[Any, str | None]:
    """Open an empty saver; return the URL that --from takes for it too, if it takes one."""
    match kind:
        case "memory":
            return InMemorySaver(), None
        case "sqlite" | "sqlite-sync":
            path = str(folder / "checkpoints.sqlite")
            if kind == "sqlite":
                opened = _class(f"{SQLITE}.aio", "AsyncSqliteSaver").from_conn_string(path)
                return await stack.enter_async_context(opened), f"sqlite:///{path}"
            return stack.enter_context(_class(SQLITE, "SqliteSaver").from_conn_string(path)), None
        case "postgres" | "postgres-sync":
            url: str = request.getfixturevalue("postgres")
            if kind == "postgres":
                opened = _class(f"{POSTGRES}.aio", "AsyncPostgresSaver").from_conn_string(url)
                saver = await stack.enter_async_context(opened)
                await saver.setup()
                return saver, url
            sync = stack.enter_context(_class(POSTGRES, "PostgresSaver").from_conn_string(url))
            sync.setup()
            return sync, None
        case "redis":
            url = request.getfixturevalue("search")
            opened = _class("langgraph.checkpoint.redis.aio", "AsyncRedisSaver").from_conn_string(
                url
            )
            return await stack.enter_async_context(opened), url
        case "valkey":
            url = request.getfixturevalue("plain").replace("redis://", "valkey://")
            opened = _class(AWS, "AsyncValkeySaver").from_conn_string(url, pool_size=64)
            return await stack.enter_async_context(opened), url
        case _:
            endpoint = request.getfixturevalue("dynamodb")
            saver = _class(AWS, "DynamoDBSaver")(
                "checkpoints", region_name="eu-west-1", endpoint_url=endpoint
            )
            return saver, f"dynamodb://checkpoints?region=eu-west-1&endpoint={endpoint}"


@pytest.fixture(params=KINDS)
async def other(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, Any, str | None]]:
    async with AsyncExitStack() as stack:
        kind: str = request.param
        saver, url = await _opened(kind, request, tmp_path, stack)
        if kind == "sqlite":
            await saver.setup()
        # A server serves several tests.
        for thread in ("asks", "deltas", "loop", "many"):
            if kind.endswith("-sync"):
                saver.delete_thread(thread)
            else:
                await saver.adelete_thread(thread)
        yield kind, saver, url


class _Threaded:
    """A saver that blocks, for the graphs and helpers that await."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    async def aput(self, *values: Any) -> Any:
        return self._saver.put(*values)


async def test_a_real_saver_is_imported_whole(
    other: tuple[str, Any, str | None], store: RedisStateStore, settings: Settings
) -> None:
    kind, given, url = other
    saver = RedisSaver(store)
    if kind.endswith("-sync"):
        await _fill_blocking(given)
    else:
        await fill(given)
    names = ["asks", "deltas", "loop"]
    source = source_of(given)
    assert sorted([thread async for thread in source.threads()]) == names
    graph_sources.made["given"] = given
    for thread in names:
        done = await saver.aimport_thread(source, thread)
        assert done.equal
        assert done.added == done.checkpoints > 0
        assert done.writes > 0
        theirs = {each.checkpoint["id"]: each async for each in source.checkpoints(thread)}
        async for each in saver.alist(config_of(thread)):
            wanted = theirs.pop(each.checkpoint["id"])
            assert each.checkpoint == wanted.checkpoint
            assert each.metadata == wanted.metadata
            assert (each.parent_config or {}) == (wanted.parent_config or {})
            assert sorted(map(str, each.pending_writes or [])) == sorted(
                map(str, wanted.pending_writes or [])
            )
        assert not theirs
    if url is not None:
        ran = await cli(settings, "langgraph", "import", "--from", url, "--json")
        assert ran.status == 0, ran.err
        assert (ran.document["threads"], ran.document["added"]) == (3, 0)
    done_effects: list[Any] = []
    graph = asking(saver, done_effects.append, "pay", "ship")
    state = await graph.aget_state(config_of("asks"))
    await graph.ainvoke(
        Command(resume={each.id: "yes" for each in state.interrupts}), config_of("asks")
    )
    assert sorted(done_effects) == [("pay", "yes"), ("ship", "yes")]
    log = (await adding_deltas(saver, steps=13).aget_state(config_of("deltas"))).values["log"]
    assert sorted(log) == sorted(["b", *map(str, range(13))])


async def _fill_blocking(saver: Any) -> None:
    counting(saver, steps=12).invoke({"log": ["start"]}, config_of("loop"))
    asking(saver, lambda _: None, "pay", "ship").invoke({"log": ["s"]}, config_of("asks"))
    adding_deltas(saver, steps=13).invoke({"n": 0, "log": []}, config_of("deltas"))


async def test_pages_lose_nothing_of_many_namespaces(
    other: tuple[str, Any, str | None], store: RedisStateStore
) -> None:
    """Of more than a page, with the same ids in several namespaces."""
    kind, given, _ = other
    writer = _Threaded(given) if kind.endswith("-sync") else given
    for namespace in ("", "a", "b"):
        for n in range(70):
            await put(writer, "many", n, namespace=namespace, value=f"{namespace}{n}")
    done = await RedisSaver(store).aimport_thread(source_of(given), "many")
    assert (done.equal, done.added) == (True, 210)
