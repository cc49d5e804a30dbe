"""RedisStore: the items of LangGraph's long-term memory on plain Redis or Valkey.

**Layout.** An item is a hash of its own, so that it has a lifetime of its own. A listing of 16
shards, by namespace, names all items in the order of namespace and key. A search reads a range of
it.

**Lifetimes.** An item's entry in the listing is written before the item and behind it, and outlives
it by a quarter of its lifetime. A read that refreshes the item renews both, if the server takes
writes. A search removes entries of items that are gone. `primitives.listing` says why it removes no
others.

**Crashes.** A crash between entry and item leaves an entry, which a search removes, or which
expires. A crash in a deletion leaves the same. So can a deletion that meets a put of the same key.
A crash in a read that refreshes leaves an item that may outlive its entry, until its next use. Each
put is one step, and the last one stands. In a batch all reads come first, as in LangGraph's own
store.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Self, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from redis_state import limits
from redis_state.errors import InvalidField, OutcomeUnknown
from redis_state.integrations.langgraph.filters import matches
from redis_state.integrations.langgraph.store_thread import OnStoreThread, StoreThread
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.listing import ShardedListing
from redis_state.scripts import GraphListing, ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.transport.keys import GRAPH_SHARDS

_PAGE = 100
_AT_ONCE = 50
_SWEPT = 500
_BETWEEN = "\0"

Namespace = tuple[str, ...]


class RedisStore(OnStoreThread, BaseStore):
    """Keep items of graphs in Redis or Valkey, for any number of processes.

    Values are JSON, sealed by the store's codec. An item lives `graph_items_ttl` after its last
    use, or ``ttl`` minutes; ``ttl_config`` has the defaults, as in LangGraph. There are no vectors:
    a search with a ``query`` raises InvalidField. Results of a search are in the order of namespace
    and key. `batch` blocks, from any thread; `abatch` is for ``await``.
    """

    supports_ttl = True

    def __init__(self, store: RedisStateStore, *, ttl_config: TTLConfig | None = None) -> None:
        self.ttl_config = ttl_config
        self._base = store.base
        keys = store.base.keys
        self._shards = [
            GraphListing(keys.graph_item_names(n), keys.graph_item_expiries(n))
            for n in range(GRAPH_SHARDS)
        ]
        self._listing = ShardedListing(store.base.scripts, self._shards, size=_PAGE)
        self._home = StoreThread(store, "redis_state items")

    @classmethod
    def from_url(
        cls, url: str | None = None, *, ttl_config: TTLConfig | None = None, **options: Any
    ) -> Self:
        """Make a store for a server's URL, else for ``REDIS_STATE_URL``.

        Options are the fields of `Settings`. Errors: ConfigError. No I/O.
        """
        made = cls(RedisStateStore.from_url(url, **options), ttl_config=ttl_config)
        made._home.owned = True
        return made

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: the reads at once, then the puts, of one item the last.

        Errors: InvalidField and PayloadTooLarge, of any operation before all; PayloadUnreadable;
        OutcomeUnknown if the server takes some of the puts only. Nothing is put behind an error.
        """
        listed = list(ops)
        puts: dict[tuple[Namespace, str], tuple[PutOp, bytes, int]] = {}
        for op in listed:
            _check(op)
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = (op, *self._written(op))
        results = await asyncio.gather(*(self._read(op) for op in listed))
        await self._put_all(puts.values())
        return list(results)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations while the caller waits, as `abatch`."""
        return self._home.run(lambda: self.abatch(ops))

    async def _read(self, op: Op) -> Result:
        match op:
            case GetOp():
                return await self._get(op.namespace, op.key, refresh=op.refresh_ttl)
            case SearchOp():
                return cast("Result", await self._search(op))
            case ListNamespacesOp():
                return await self._namespaces(op)
            case _:
                return None

    async def _get(self, namespace: Namespace, key: str, *, refresh: bool) -> SearchItem | None:
        reply = await self._base.scripts.read_store_item(
            self._item(namespace, key), refresh=refresh
        )
        if reply.word is ReplyCode.MISSING:
            return None
        value, created, updated, ttl_ms, refreshed = reply.facts
        if refreshed:
            shard, entry = _shard(namespace), _entry(namespace, key)
            await self._listing.renew(shard, entry, ttl_ms=_longer_ms(int(ttl_ms)))
        payloads, of = self._base.payloads, f"item {key!r}"
        whole = payloads.need(payloads.decode(value), of=of, field="value")
        return SearchItem(namespace, key, whole, _moment(created), _moment(updated))

    def _written(self, op: PutOp) -> tuple[bytes, int]:
        """Return the value and the lifetime that a put writes. Errors: as of a put."""
        if op.value is None:
            return b"", 0
        ttl = self._base.settings.graph_items_ttl
        if op.ttl is not None:
            ttl = limits.lifetime("ttl", timedelta(minutes=op.ttl))
        return self._base.payloads.write(dict(op.value), field="value"), ms(ttl)

    async def _put_all(self, puts: Iterable[tuple[PutOp, bytes, int]]) -> None:
        """Put, and return or raise when none is under way: what the caller puts next is last."""
        written: list[PutOp] = []

        async def put(op: PutOp, value: bytes, ttl_ms: int) -> None:
            await self._put(op, value, ttl_ms)
            written.append(op)

        with behind_a_write(self._base.scripts.transport.address, written=written):
            ends = await asyncio.gather(*(put(*each) for each in puts), return_exceptions=True)
            errors = [error for error in ends if error is not None]
            if errors:
                raise next((one for one in errors if isinstance(one, OutcomeUnknown)), errors[0])

    async def _put(self, op: PutOp, value: bytes, ttl_ms: int) -> None:
        scripts, item = self._base.scripts, self._item(op.namespace, op.key)
        shard, entry = _shard(op.namespace), _entry(op.namespace, op.key)
        if op.value is None:
            await self._listing.remove(shard, entry, lambda: scripts.unlink(item))
            return
        await self._listing.around(
            shard,
            entry,
            lambda: scripts.put_store_item(item, value=value, ttl_ms=ttl_ms),
            ttl_ms=_longer_ms(ttl_ms),
        )

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        found: list[SearchItem] = []
        skipped = 0
        async with aclosing(self._pages(op.namespace_prefix)) as pages:
            async for page in pages:
                read = await asyncio.gather(
                    *(self._get(*_read_entry(entry), refresh=False) for _, entry, _ in page)
                )
                for listed, item in zip(page, read, strict=True):
                    if item is None:
                        await self._listing.unlist(*listed)
                    elif matches(item.value, op.filter):
                        skipped += 1
                        found += [item] if skipped > op.offset else []
                    if len(found) == op.limit:
                        break
                if len(found) == op.limit:
                    break
        if op.refresh_ttl:
            await asyncio.gather(
                *(self._get(item.namespace, item.key, refresh=True) for item in found)
            )
        return found

    async def _pages(self, prefix: Namespace) -> AsyncGenerator[list[tuple[int, bytes, bytes]]]:
        """Yield entries of items below a namespace, so many as are read at once."""
        begin = b"".join(_raw(label) + b"\0" for label in prefix)
        start = b"[" + begin if begin else b"-"
        async with aclosing(self._listing.pages(start, begin=begin)) as pages:
            async for page in pages:
                for first in range(0, len(page), _AT_ONCE):
                    yield page[first : first + _AT_ONCE]

    async def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        shards = await asyncio.gather(*(self._namespaces_of(n) for n in range(GRAPH_SHARDS)))
        found = {namespace for shard in shards for namespace in shard}
        conditions = op.match_conditions or ()
        matching = {each for each in found if all(_fits(each, one) for one in conditions)}
        if op.max_depth is not None:
            matching = {each[: op.max_depth] for each in matching}
        return sorted(matching)[op.offset : op.offset + op.limit]

    async def _namespaces_of(self, shard: int) -> list[Namespace]:
        found: list[Namespace] = []
        start = b"-"
        while True:
            reply = await self._base.scripts.list_store_namespaces(
                self._shards[shard], start=start, size=_PAGE, most=_SWEPT
            )
            swept, *page = reply.facts
            if int(swept) == _SWEPT:
                continue
            found += [_labels(raw) for raw in page]
            if len(page) < _PAGE:
                return found
            start = b"[" + page[-1] + b"\0\1"

    def _item(self, namespace: Namespace, key: str) -> str:
        return self._base.keys.graph_item(_BETWEEN.join(namespace), key)


def _check(op: Op) -> None:
    """Check what users choose. Errors: InvalidField."""
    match op:
        case GetOp() | PutOp():
            _check_namespace(op.namespace, "namespace", least=1)
            if not isinstance(op.key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidField("key", "text is needed")
        case SearchOp():
            _check_namespace(op.namespace_prefix, "namespace_prefix", least=0)
            if op.query is not None:
                raise InvalidField("query", "needs vectors, which this store does not have")
            limits.count("limit", op.limit)
            limits.count("offset", op.offset, least=0)
        case ListNamespacesOp():
            limits.count("limit", op.limit)
            limits.count("offset", op.offset, least=0)
            if op.max_depth is not None:
                limits.count("max_depth", op.max_depth)
    if isinstance(op, PutOp):
        value = cast("object", op.value)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidField("value", "a mapping is needed")
        if op.ttl is not None:
            limits.seconds("ttl", op.ttl)


def _check_namespace(namespace: object, field: str, *, least: int) -> None:
    if not isinstance(namespace, tuple) or len(cast("Namespace", namespace)) < least:
        raise InvalidField(field, f"a tuple of {least} labels or more is needed")
    for label in cast("tuple[object, ...]", namespace):
        if not isinstance(label, str) or not label or _BETWEEN in label or "." in label:
            raise InvalidField(field, "labels are texts without periods and zero bytes")


def _fits(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)]
    if condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))


def _entry(namespace: Namespace, key: str) -> bytes:
    return _raw(_BETWEEN.join(namespace)) + b"\0\0" + _raw(key)


def _read_entry(entry: bytes) -> tuple[Namespace, str]:
    namespace, _, key = entry.partition(b"\0\0")
    return _labels(namespace), key.decode("utf-8", "surrogatepass")


def _labels(raw: bytes) -> Namespace:
    return tuple(raw.decode("utf-8", "surrogatepass").split(_BETWEEN))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _longer_ms(ttl_ms: int) -> int:
    return ttl_ms + ttl_ms // 4


def _shard(namespace: Namespace) -> int:
    return zlib.crc32(_raw(_BETWEEN.join(namespace))) % GRAPH_SHARDS


def _moment(text: bytes) -> datetime:
    return datetime.fromtimestamp(int(text) / 1000, UTC)
