"""Savers of other stores, as an import reads them: threads, and the checkpoints of a thread.

`BaseCheckpointSaver` cannot list threads, and some savers list nothing without a thread. What is
known about common packages is here. All others are read through the base class alone. Used insides,
each found by the name of its module:

- langgraph-checkpoint-postgres 3 and -sqlite 3: the table ``checkpoints``; ``_cursor``, ``conn``;
- langgraph-checkpoint-redis 0.5: ``_redis``, ``_checkpoint_prefix``, the field ``thread_id``;
- langgraph-checkpoint-aws 1.2: ``PK`` in DynamoDB; ``thread:{<id>}:<namespace>`` in Valkey.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from redis_state.errors import CorruptState

# Checkpoints that are held at a time, and threads.
_PAGE = 50
_THREADS = 1000
# The saver on RediSearch lists 10,000 checkpoints without a limit. A million is its server's limit.
_MOST = 1_000_000

Saver: TypeAlias = BaseCheckpointSaver[Any]
_BASE: Any = BaseCheckpointSaver


class ThreadSource(Protocol):
    """What is imported from."""

    def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, each once."""
        ...

    def checkpoints(self, thread_id: str) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a thread, of all namespaces, in any order."""
        ...


def source_of(saver: Saver) -> ThreadSource:
    """Return a saver as a source."""
    modules = [cls.__module__ for cls in type(saver).__mro__]
    for prefix, kind in _KINDS.items():
        if any(module.startswith(prefix) for module in modules):
            return kind(saver)
    return AnySaver(saver)


class AnySaver:
    """A saver of which nothing is known: all of its checkpoints are read to find its threads."""

    limit: int | None = None

    def __init__(self, saver: Saver) -> None:
        self._saver: Any = saver

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, each once."""
        found: dict[str, None] = {}
        async for each in self._tuples(None, limit=self.limit):
            found[str(each.config.get("configurable", {})["thread_id"])] = None
        for thread_id in found:
            yield thread_id

    async def checkpoints(self, thread_id: str) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a thread."""
        async for each in self._tuples(_config(thread_id), limit=self.limit):
            yield each

    async def _tuples(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncGenerator[CheckpointTuple]:
        """List, by the method that the saver has: some have one of two colours only."""
        if self._saver.__class__.alist is not _BASE.alist:
            found: AsyncIterator[CheckpointTuple] = self._saver.alist(config, **options)
            try:
                async for each in found:
                    yield each
            except NotImplementedError:
                pass
            else:
                return
        iterator = self._saver.list(config, **options)
        while (following := await asyncio.to_thread(next, iterator, None)) is not None:
            yield following


class InMemory(AnySaver):
    """`InMemorySaver`."""

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads."""
        for thread_id in list(self._saver.storage):
            yield thread_id


class _Paged(AnySaver):
    """A saver that orders a thread's checkpoints by their ids, whatever their namespaces."""

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, page by page."""
        after: str | None = None
        while page := await self._page(after):
            for thread_id in page:
                yield thread_id
            after = page[-1]

    async def checkpoints(self, thread_id: str) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a thread, page by page."""
        bound: str | None = None
        size = _PAGE
        while True:
            before = None if bound is None else _config(thread_id, checkpoint_id=bound)
            found = self._tuples(_config(thread_id), before=before, limit=size)
            page = [each async for each in found]
            ids: list[str] = [each.checkpoint["id"] for each in page]
            # Else a page would leave out what is not before it.
            if any(one < next_ for one, next_ in pairwise(([bound] if bound else []) + ids)):
                raise CorruptState(f"thread {thread_id!r}", "the source lists in another order")
            # Those of the last id may have others of that id behind them.
            whole = page if len(page) < size else [each for each in page if _id(each) > ids[-1]]
            for each in whole:
                yield each
            if len(page) < size:
                return
            if whole:
                bound, size = _id(whole[-1]), _PAGE
            else:
                size *= 2

    async def _page(self, after: str | None) -> list[str]:
        raise NotImplementedError


class Postgres(_Paged):
    """`PostgresSaver`, `AsyncPostgresSaver` and their shallow forms."""

    async def _page(self, after: str | None) -> list[str]:
        behind = "" if after is None else "WHERE thread_id > %s"
        sql = f"SELECT DISTINCT thread_id FROM checkpoints {behind} ORDER BY 1 LIMIT {_THREADS}"  # noqa: S608
        values = () if after is None else (after,)
        if hasattr(self._saver, "loop"):
            async with self._saver._cursor() as cursor:  # noqa: SLF001 - see above
                await cursor.execute(sql, values)
                return [row["thread_id"] for row in await cursor.fetchall()]

        def read() -> list[str]:
            with self._saver._cursor() as cursor:  # noqa: SLF001 - see above
                cursor.execute(sql, values)
                return [row["thread_id"] for row in cursor.fetchall()]

        return await asyncio.to_thread(read)


class Sqlite(_Paged):
    """`SqliteSaver` and `AsyncSqliteSaver`."""

    async def _page(self, after: str | None) -> list[str]:
        behind = "" if after is None else "WHERE thread_id > ?"
        sql = f"SELECT DISTINCT thread_id FROM checkpoints {behind} ORDER BY 1 LIMIT {_THREADS}"  # noqa: S608
        values = () if after is None else (after,)
        if hasattr(self._saver, "loop"):
            await self._saver.setup()
            async with self._saver.lock, self._saver.conn.execute(sql, values) as cursor:
                return [row[0] for row in await cursor.fetchall()]

        def read() -> list[str]:
            with self._saver.cursor(transaction=False) as cursor:
                cursor.execute(sql, values)
                return [row[0] for row in cursor.fetchall()]

        return await asyncio.to_thread(read)


class RediSearch(AnySaver):
    """`RedisSaver` and `AsyncRedisSaver` of langgraph-checkpoint-redis: no pages there."""

    limit: int | None = _MOST

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, each once. A key names one only with its parts."""
        client = self._saver._redis  # noqa: SLF001 - see above
        prefix = self._saver._checkpoint_prefix  # noqa: SLF001 - see above
        seen: set[str] = set()
        async for keys in _scanned(client, f"{prefix}:*"):
            for key in keys:
                row = await _called(partial(client.execute_command, "JSON.GET", key, "$.thread_id"))
                # Clients with callbacks for JSON have read it already.
                for stored in json.loads(row) if isinstance(row, (str, bytes)) else row or ():
                    thread_id = "" if stored == _EMPTY_ID else str(stored)
                    if thread_id not in seen:
                        seen.add(thread_id)
                        yield thread_id


class DynamoDb(AnySaver):
    """`DynamoDBSaver` of langgraph-checkpoint-aws."""

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, each once, by a scan of the table."""
        seen, start = set[str](), dict[str, Any]()
        while True:
            reply = await asyncio.to_thread(
                self._saver.client.scan,
                TableName=self._saver.table_name,
                ProjectionExpression="PK",
                FilterExpression="begins_with(PK, :prefix)",
                ExpressionAttributeValues={":prefix": {"S": _DYNAMO}},
                **start,
            )
            for item in reply["Items"]:
                thread_id = item["PK"]["S"].removeprefix(_DYNAMO)
                if thread_id not in seen:
                    seen.add(thread_id)
                    yield thread_id
            if "LastEvaluatedKey" not in reply:
                return
            start = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}


class Valkey(AnySaver):
    """`ValkeySaver` and `AsyncValkeySaver` of langgraph-checkpoint-aws: one namespace a list."""

    def __init__(self, saver: Saver) -> None:
        super().__init__(saver)
        self._namespaces: dict[str, set[str]] = defaultdict(set)

    async def threads(self) -> AsyncGenerator[str]:
        """Yield the ids of all threads, each once."""
        await self._find("thread:{*")
        for thread_id in list(self._namespaces):
            yield thread_id

    async def checkpoints(self, thread_id: str) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a thread, namespace by namespace."""
        if thread_id not in self._namespaces:
            await self._find("thread:{" + _literal(thread_id) + "}:*")
        for namespace in sorted(self._namespaces.get(thread_id, ())):
            async for each in self._tuples(_config(thread_id, checkpoint_ns=namespace)):
                yield each

    async def _find(self, pattern: str) -> None:
        async for keys in _scanned(self._saver.client, pattern):
            for key in keys:
                text = key.decode() if isinstance(key, bytes) else key
                thread_id, _, namespace = text.removeprefix("thread:{").partition("}:")
                self._namespaces[thread_id].add(namespace)


_EMPTY_ID = "00000000-0000-0000-0000-000000000000"
_DYNAMO = "CHECKPOINT_"
_KINDS: dict[str, type[AnySaver]] = {
    "langgraph.checkpoint.memory": InMemory,
    "langgraph.checkpoint.postgres": Postgres,
    "langgraph.checkpoint.sqlite": Sqlite,
    "langgraph.checkpoint.redis": RediSearch,
    "langgraph_checkpoint_aws.checkpoint.dynamodb": DynamoDb,
    "langgraph_checkpoint_aws.checkpoint.valkey": Valkey,
}


async def _scanned(client: Any, pattern: str) -> AsyncGenerator[Iterable[Any]]:
    cursor: Any = 0
    while True:
        cursor, keys = await _called(partial(client.scan, cursor=cursor, match=pattern, count=500))
        yield keys
        if int(cursor) == 0:
            return


async def _called(call: Callable[[], Any]) -> Any:
    """Call a client of either colour without blocking the loop."""
    found = await asyncio.to_thread(call)
    return await found if hasattr(found, "__await__") else found


def _literal(text: str) -> str:
    """Write a text as a pattern that only it matches."""
    return "".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in text)


def _id(found: CheckpointTuple) -> str:
    return found.checkpoint["id"]


def _config(thread_id: str, **more: str) -> RunnableConfig:
    return RunnableConfig(configurable={"thread_id": thread_id, **more})
