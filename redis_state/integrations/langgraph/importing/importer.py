"""Import threads of other savers, and compare them.

**Steps.** A thread is read whole into a spool. What the target has of it is compared. What is
missing is written under a claim, the oldest checkpoints first, each in one step with the values
that the batch needs. Then all of it is read again and compared: counts and digests.

**Crashes.** A crash leaves a thread that is shorter, and a claim that expires. The same call finds
what is there and writes the rest. Writes of a checkpoint come before it, so a checkpoint that is
there was imported whole. Writes that its source got later are added.

**Races.** Other writers of the target are refused while the claim is held. If another process holds
one, nothing is written. A checkpoint of the target that differs is left alone and counted. One that
the source does not have is left alone too: the thread has continued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from typing import Any

from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener

from redis_state.errors import CorruptState
from redis_state.integrations.langgraph.importing.sources import ThreadSource
from redis_state.integrations.langgraph.importing.spool import Spool, SpooledCheckpoint
from redis_state.integrations.langgraph.threads.claims import ThreadClaims
from redis_state.integrations.langgraph.threads.stored.places import split_place, thread_of
from redis_state.integrations.langgraph.threads.stored.rows import FoundCheckpoint, Rows
from redis_state.integrations.langgraph.threads.threads import Threads
from redis_state.primitives.lease import HeldLease

# Checkpoints that are compared and written together, and bytes of values at most.
_BATCH = 20
_BYTES = 4 * 1024 * 1024
_EXTRA = 100
# It is renewed, and a killed import holds a thread for no longer.
_LEASE_S = 5.0
_MODULUS = 2**128


@dataclass(slots=True)
class ThreadImport:
    """What an import found in a thread and did. The digests are over what the source has."""

    thread_id: str
    checkpoints: int = 0
    writes: int = 0
    added: int = 0
    added_writes: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    source_digest: int = field(default=0, repr=False)
    target_digest: int = field(default=0, repr=False)

    @property
    def equal(self) -> bool:
        """Return whether the target has all that the source has, and has it alike."""
        return not self.missing and not self.different and self.source_digest == self.target_digest


@dataclass(slots=True)
class _Compared:
    """A checkpoint of the source beside the target's, which ``lacks`` some of its writes."""

    spooled: SpooledCheckpoint
    is_there: bool = False
    is_different: bool = False
    lacks: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    digests: tuple[int, int] = (0, 0)


class Importing:
    """Import threads, one at a time."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims

    async def run(self, source: ThreadSource, thread_id: str, *, write: bool) -> ThreadImport:
        """Import a thread, or only compare it. Errors: InvalidField."""
        # A saver in memory keeps an id as it was given: a number, say.
        target = thread_of(thread_id, "thread_id")
        spool = Spool(self._rows)
        try:
            with lost_types() as lost:
                async with aclosing(source.checkpoints(thread_id)) as checkpoints:
                    async for each in checkpoints:
                        spool.add(each)
            if lost:
                types = ", ".join(sorted(lost))
                raise CorruptState(
                    f"thread {target!r}", f"types of its values cannot be imported here: {types}"
                )
            return await self._import(spool, target, write=write)
        finally:
            spool.close()

    async def _import(self, spool: Spool, thread_id: str, *, write: bool) -> ThreadImport:
        done = ThreadImport(thread_id)
        found = await self._judge(spool, thread_id, done)
        if found and write:
            async with self._claims.claim(thread_id, lease_s=_LEASE_S):
                claim = self._claims.held(thread_id)
                async for batch in self._compared(spool, thread_id):
                    await self._write(spool, thread_id, batch, done, claim)
                await self._judge(spool, thread_id, done)
        return done

    async def _judge(self, spool: Spool, thread_id: str, done: ThreadImport) -> bool:
        """Count and compare all; return whether something can be added."""
        done.checkpoints, done.writes = len(spool), spool.writes
        done.missing = done.different = done.source_digest = done.target_digest = 0
        lacking = False
        async for batch in self._compared(spool, thread_id):
            for each in batch:
                done.missing += not each.is_there
                done.different += each.is_different
                lacking = lacking or bool(each.lacks) or not each.is_there
                source, target = each.digests
                done.source_digest = (done.source_digest + source) % _MODULUS
                done.target_digest = (done.target_digest + target) % _MODULUS
        done.extra = await self._extra(spool, thread_id)
        return lacking

    async def _compared(self, spool: Spool, thread_id: str) -> AsyncGenerator[list[_Compared]]:
        """Yield the checkpoints beside the target's, the oldest first, batch by batch."""
        batch: list[SpooledCheckpoint] = []
        seen: set[str] = set()
        size = 0
        for each in spool:
            batch.append(each)
            size += spool.size(each, seen)
            if len(batch) == _BATCH or size > _BYTES:
                yield await self._beside(spool, thread_id, batch)
                batch, seen, size = [], set[str](), 0
        if batch:
            yield await self._beside(spool, thread_id, batch)

    async def _beside(
        self, spool: Spool, thread_id: str, batch: list[SpooledCheckpoint]
    ) -> list[_Compared]:
        places = [each.place for each in batch]
        found, known = self._threads.read(thread_id, places), dict[str, bytes]()
        return [self._compare(spool, each, await anext(found), known) for each in batch]

    def _compare(
        self,
        spool: Spool,
        spooled: SpooledCheckpoint,
        found: FoundCheckpoint | None,
        known: dict[str, bytes],
    ) -> _Compared:
        """Compare a checkpoint. ``known`` are hashes of the target's values, each made once."""
        values = {name: spool.digest(name) for name in spooled.names}
        row = spool.read(spooled.row)
        writes = {
            line: spool.read(at)
            for task in spooled.writes
            for line, at in ((f"{task.task} {index}", at) for index, _, at in task.writes)
        }
        source = self._digest(row, values, writes)
        made = _Compared(spooled, digests=(_number(*source), 0))
        if found is None:
            return made
        made.is_there = True
        stored = {
            b" ".join(line.split(b" ")[:2]).decode(): data
            for line, data in zip(found.writes[::2], found.writes[1::2], strict=True)
        }
        # The source's values only: so they are named alike.
        theirs = {
            name: self._rows.whole_value(name.encode(), found.values, of="a checkpoint")
            for name in spooled.names
            if name.encode() in found.values
        }
        for name in theirs.keys() - known.keys():
            known[name] = self._rows.digest(theirs[name])
        common = {line: stored[line] for line in writes if line in stored}
        target = self._digest(found.row, {name: known[name] for name in theirs}, common)
        made.lacks = [(line, data) for line, data in writes.items() if line not in stored]
        same = target[0] == source[0] or self._alike(
            row, {name: spool.value(name) for name in values}, found.row, theirs
        )
        parts = [source[0] if same else target[0]]
        for line, data in common.items():
            alike = target[1][line] == source[1][line]
            same = same and (alike or self._alike_writes(line, writes[line], data))
            parts.append(source[1][line] if same else target[1][line])
        made.is_different = not same
        made.digests = made.digests[0], _number(parts[0], dict(zip(common, parts[1:], strict=True)))
        return made

    def _digest(
        self, row: bytes, values: Mapping[str, bytes], writes: Mapping[str, bytes]
    ) -> tuple[bytes, dict[str, bytes]]:
        """Hash a checkpoint with the hashes of its values, and each of its writes."""
        whole = blake2b(self._rows.opened_row(row, of="a checkpoint"), digest_size=16)
        for name in sorted(values):
            whole.update(name.encode() + values[name])
        return whole.digest(), {
            line: blake2b(self._rows.opened_write(data, of="a checkpoint"), digest_size=16).digest()
            for line, data in writes.items()
        }

    def _alike(
        self, row: bytes, values: Mapping[str, bytes], other: bytes, others: Mapping[str, bytes]
    ) -> bool:
        """Compare as objects: see `Rows.same_value`."""
        rows, of = self._rows, "a checkpoint"
        if values.keys() != others.keys():
            return False
        with suppress(Exception):  # comparing objects of the user
            return bool(
                rows.read_row(row, of=of) == rows.read_row(other, of=of)
                and all(rows.same_value(data, others[name], of=of) for name, data in values.items())
            )
        return False

    def _alike_writes(self, line: str, one: bytes, other: bytes) -> bool:
        key = line.encode()
        with suppress(Exception):  # comparing objects of the user
            first, second = (
                self._rows.read_writes([key, data], of="a checkpoint")[0].pending
                for data in (one, other)
            )
            return bool(first == second)
        return False

    async def _write(
        self,
        spool: Spool,
        thread_id: str,
        batch: list[_Compared],
        done: ThreadImport,
        claim: HeldLease | None,
    ) -> None:
        """Write what is missing of a batch. Calls of one connection keep their order."""
        for run in {each.spooled.run for each in batch if not each.is_there}:
            await self._threads.list_run(run, thread_id)
        calls: list[Any] = []
        given: set[str] = set()
        for each in batch:
            spooled = each.spooled
            # An earlier import may have been cut off between a checkpoint's writes and its row.
            lacking = None if not each.is_there else {line for line, _ in each.lacks}
            for task in spooled.writes:
                flat: list[bytes] = []
                for index, channel, at in task.writes:
                    if lacking is None or f"{task.task} {index}" in lacking:
                        flat += str(index).encode(), channel.encode(), spool.read(at)
                if flat:
                    calls.append(
                        self._threads.put_writes(
                            thread_id, spooled.place, task.task, flat, claim=claim
                        )
                    )
                    done.added_writes += len(flat) // 3
            if not each.is_there:
                values: list[bytes] = []
                for name in spooled.names:
                    if name not in given:
                        values += name.encode(), spool.value(name)
                given.update(spooled.names)
                calls.append(
                    self._threads.put(
                        thread_id,
                        spooled.place,
                        spool.read(spooled.row),
                        values,
                        run=spooled.run,
                        claim=claim,
                    )
                )
                done.added += 1
        await asyncio.gather(*calls)

    async def _extra(self, spool: Spool, thread_id: str) -> int:
        """Count the target's checkpoints that the source does not have."""
        extra = 0
        for newest in await self._threads.namespaces(thread_id):
            scope, before = split_place(newest)[0], None
            while page := await self._threads.page(thread_id, scope, before=before, size=_EXTRA):
                extra += sum(place not in spool for place, _ in page)
                before = split_place(page[-1][0])[1]
        return extra


@contextmanager
def lost_types() -> Generator[set[str]]:
    """Collect the types that LangGraph's serializer replaces by their data.

    Types that another import reads meanwhile are not among them. LangGraph's savers read in the
    context of their caller. What is read without one may be of any import, so all collect it.
    """
    lost: set[str] = set()
    place = _reading.set(lost)

    def is_here() -> bool:
        reading = _reading.get()
        return reading is None or reading is lost

    def hear(event: SerdeEvent) -> None:
        if not is_here():
            return
        name = f"{event['module']}.{event['name']}"
        if event["kind"] != "msgpack_unregistered_allowed" or name in _unbuilt:
            lost.add(name)
            return
        try:
            getattr(import_module(event["module"]), event["name"])
        except Exception:  # noqa: BLE001 - a module of the user
            lost.add(name)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "reconstruct" in str(record.msg) and isinstance(record.args, tuple):
                module, name, *_ = record.args
                # It is logged once in a process.
                _unbuilt.add(f"{module}.{name}")
                if is_here():
                    lost.add(f"{module}.{name}")

    logger, handler = logging.getLogger("langgraph.checkpoint.serde.jsonplus"), Handler()
    unregister = register_serde_event_listener(hear)
    logger.addHandler(handler)
    try:
        yield lost
    finally:
        logger.removeHandler(handler)
        unregister()
        _reading.reset(place)


_unbuilt: set[str] = set()
# What the import collects that reads in this context.
_reading: ContextVar[set[str] | None] = ContextVar("redis_state_lost_types", default=None)


def _number(whole: bytes, writes: Mapping[str, bytes]) -> int:
    """Make one number of a checkpoint's hashes. Sums of them do not depend on an order."""
    made = blake2b(whole, digest_size=16)
    for line in sorted(writes):
        made.update(line.encode())
        made.update(writes[line])
    return int.from_bytes(made.digest(), "big")
