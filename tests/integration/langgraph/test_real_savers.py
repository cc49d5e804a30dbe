"""Imports from the savers of the real packages, where they can be had: `make test-savers`.

Each runs on its real store: PostgreSQL, a file, Redis with search and JSON, Valkey. DynamoDB alone
is moto's server, in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from benchmarks.server import BenchServer, stack_server
from benchmarks.tasks.postgres import BenchPostgres
from langgraph.types import Command

from redis_state import RedisStateStore, Settings
from redis_state.integrations.langgraph import RedisSaver, source_of
from redis_state.testing import eventually
from tests.support import graph_sources
from tests.support.commands import cli
from tests.support.graph_sources import fill, put
from tests.support.graphs import adding_deltas, asking, config_of

pytestmark = pytest.mark.skipif(
    "REDIS_STATE_SAVERS" not in os.environ, reason="needs their packages: make test-savers"
)

KINDS = ["memory", "sqlite", "sqlite-sync", "postgres", "postgres-sync", "redis", "valkey", "dynamodb"]


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
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    program = shutil.which("moto_server", path=str(Path(sys.executable).parent))
    assert program is not None
    process = subprocess.Popen(
        [program, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


async def _opened(kind: str, request: pytest.FixtureRequest, folder: Path, stack: AsyncExitStack) -> tuple[Any, str | None]:
    """Open an empty saver; return the URL that --from takes for it too, if it takes one."""
    match kind:
        case "memory":
            from langgraph.checkpoint.memory import InMemorySaver

            return InMemorySaver(), None
        case "sqlite" | "sqlite-sync":
            from langgraph.checkpoint.sqlite import SqliteSaver
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            path = str(folder / "checkpoints.sqlite")
            if kind == "sqlite":
                opened = AsyncSqliteSaver.from_conn_string(path)
                return await stack.enter_async_context(opened), f"sqlite:///{path}"
            return stack.enter_context(SqliteSaver.from_conn_string(path)), None
        case "postgres" | "postgres-sync":
            from langgraph.checkpoint.postgres import PostgresSaver
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            url: str = request.getfixturevalue("postgres")
            if kind == "postgres":
                saver = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(url))
                await saver.setup()
                return saver, url
            sync = stack.enter_context(PostgresSaver.from_conn_string(url))
            sync.setup()
            return sync, None
        case "redis":
            from langgraph.checkpoint.redis.aio import AsyncRedisSaver

            url = request.getfixturevalue("search")
            return await stack.enter_async_context(AsyncRedisSaver.from_conn_string(url)), url
        case "valkey":
            from langgraph_checkpoint_aws import AsyncValkeySaver

            url = request.getfixturevalue("plain").replace("redis://", "valkey://")
            return await stack.enter_async_context(AsyncValkeySaver.from_conn_string(url)), url
        case _:
            return await _dynamodb(request.getfixturevalue("dynamodb"))


async def _dynamodb(endpoint: str) -> tuple[Any, str]:
    import boto3
    from langgraph_checkpoint_aws import DynamoDBSaver

    client = boto3.client("dynamodb", region_name="eu-west-1", endpoint_url=endpoint)

    def answers() -> bool:
        try:
            client.list_tables()
        except Exception:
            return False
        return True

    await eventually(answers, "moto's server answers", timeout_s=60)
    client.create_table(
        TableName="checkpoints",
        KeySchema=[
            {"AttributeName": "PK", "KeyType": "HASH"},
            {"AttributeName": "SK", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "PK", "AttributeType": "S"},
            {"AttributeName": "SK", "AttributeType": "S"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    saver = DynamoDBSaver("checkpoints", region_name="eu-west-1", endpoint_url=endpoint)
    return saver, f"dynamodb://checkpoints?region=eu-west-1&endpoint={endpoint}"


@pytest.fixture(params=KINDS)
async def other(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, Any, str | None]]:
    async with AsyncExitStack() as stack:
        kind: str = request.param
        yield kind, *await _opened(kind, request, tmp_path, stack)


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
    from tests.support.graphs import counting

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
            await put(writer, "many", n, namespace=namespace, n=f"{namespace}{n}")
    done = await RedisSaver(store).aimport_thread(source_of(given), "many")
    assert (done.equal, done.added) == (True, 210)
