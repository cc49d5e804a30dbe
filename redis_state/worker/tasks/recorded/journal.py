"""The journal of a task: the records of its runs, which later runs find instead of repeating work.

A step's record is a row of JSON that the script makes: its version (1 for the task's first record),
epoch, the server's time, whether it is a checkpoint, facts about it, and its result. The facts
are the result's size, chunks and digest, the step's place in the handler, for how many ms it ran,
and its attempts. A result that is too large is kept in chunks beside its record, in the same hash.
So it expires with the journal, and the journal with the task, whatever crashes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis_state.errors import CorruptState
from redis_state.primitives.blob import CHUNK_BYTES, read_chunks
from redis_state.scripts import (
    JOURNAL_BYTES,
    JOURNAL_NAMES,
    NO_LANE,
    LaneState,
    ReplyCode,
    TaskKeys,
    raw,
)
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.serialization.sealed import Sealed
from redis_state.stores.base import Base
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.recorded.replay import Replay

INLINE_BYTES = CHUNK_BYTES

_STEP = "step:"
# What a handler asks for again in each run; other kinds of notes have rules of their own.
_CHILD = "child:"
_RECEIVED = ("signal:", "request:")
_ASKED_FOR = (_STEP, "pause:", _CHILD, *_RECEIVED)
# Of a message that was received: how far the handler had come.
PLACE = "place:"
# A step whose failure the handler has handled.
FAILED = "failed:"
_JOIN = re.compile("[:/]join ")
# How what is inside of a step begins: a name and its number, or its key.
_INSIDE = re.compile(r"(?:[^#]|##)*#(?:\d+(?=[/!]|\Z)|[=~])")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step's note. Its result is there, unless it stands in ``chunks`` of their own.

    ``number`` is that of the call, see `CallOrder`; None where the order of calls means nothing.
    ``place`` counts what the handler did before, ``took_ms`` is how long the step ran with all its
    ``attempts``; 0 where an earlier version of the library recorded it.
    """

    version: int
    epoch: int
    at_ms: int
    checkpoint: bool
    size: int
    chunks: int
    sha256: str = field(repr=False)
    result: Any = field(repr=False)
    number: int | None = None
    place: int = 0
    took_ms: int = 0
    attempts: int = 0


class Journals:
    """Read and write the journals of tasks."""

    def __init__(self, base: Base) -> None:
        self._scripts = base.scripts
        self._payloads = base.payloads

    async def read(
        self, keys: TaskKeys, *, whole: bool = False, begun: Sequence[Any] = ()
    ) -> tuple[dict[str, Any], int]:
        """Return the entries by name, steps as `StepRecord`, and how many runs have written.

        ``begun`` is what `start_task` has read of them, for the run that it started. Large results
        are left where they are, see `result`. Parts that cannot be read here are `Sealed`. Errors:
        ValueError if an entry is not what was written; PayloadUnreadable for such a part if the
        ``whole`` is wanted.
        """
        flat, count = await self._notes(keys, begun)
        named = _texts(zip(flat[::2], flat[1::2], strict=True))
        return read_entries(self._payloads, keys.task_id, named, whole=whole), count

    async def _notes(self, keys: TaskKeys, begun: Sequence[Any]) -> tuple[list[bytes], int]:
        """Return entries and notes, in turn, and how many entries runs had written before.

        A short journal is one reply, a longer one several. For the run that has the lease they are
        one moment's: no other may write, and it does not yet. Another reader may miss what is
        recorded meanwhile, and get the newest of what is written again. It never gets a part of a
        journal that was removed: then it reads again.
        """
        read = partial(self._scripts.read_journal, keys, most_bytes=JOURNAL_BYTES)
        while True:
            flat, count, left = begun or (await read(names=())).facts
            begun = ()
            while left:
                some = left[:JOURNAL_NAMES]
                more, _, over = (await read(names=some)).facts
                if len(more) // 2 + len(over) < len(some):
                    break
                flat += more
                left = [*over, *left[JOURNAL_NAMES:]]
            if not left:
                return flat, _count(count)

    async def record(
        self, keys: TaskKeys, entry: str, value: bytes, *, run: Replay, lane: Lane | None = None
    ) -> None:
        """Record an entry, once. Errors: LeaseLost, JournalRewound, InvalidTransition."""
        reply = await self._scripts.record_entry(
            keys, mark=run.mark, entry=entry, value=value, lane=state_of(lane)
        )
        run.learn(reply, 0, entry, what=keys.task_id)

    async def record_step(
        self,
        keys: TaskKeys,
        entry: str,
        result: Any,
        *,
        run: Replay,
        lane: Lane | None = None,
        checkpoint: bool = False,
        inline_bytes: int = INLINE_BYTES,
        number: int | None = None,
        about: tuple[int, int, int] = (0, 0, 0),
    ) -> tuple[bytes, Any]:
        """Record a step's result, once; return the row that stands there, and its result.

        A result of more than ``inline_bytes`` is written in chunks first, each under the lease; a
        crash in between leaves chunks that the next attempt overwrites and the task's end removes.
        ``about`` is the step's place, for how many ms it ran, and its attempts.
        Errors: LeaseLost; JournalRewound; InvalidTransition if the task is gone; StoreFull;
        PayloadTooLarge; PayloadStoreUnavailable.
        """
        plain = codec.encode(result)
        field = f"result of {entry}"
        data = self._payloads.put_at_once(field, plain)
        if data is None:
            data = await self._payloads.put_written(field, plain)
        size, chunks, sha256 = len(data), 0, b""
        if size > inline_bytes:
            chunks = await self._keep(keys, entry, data, run)
            sha256 = hashlib.sha256(data).hexdigest().encode()
            data = b"null"
        called = b"null" if number is None else b"%d" % number
        written = b'[%d,%d,"%b",%b,%d,%d,%d]' % (size, chunks, sha256, called, *about)
        reply = await self._scripts.record_step(
            keys,
            mark=run.mark,
            entry=entry,
            checkpoint=checkpoint,
            chunks=chunks,
            about=written,
            result=data,
            lane=NO_LANE if lane is None else lane.state(),
        )
        run.learn(reply, 1, entry, what=keys.task_id)
        row: bytes = reply.facts[0]
        # Behind the version, the epoch, the time and the flag of the checkpoint.
        if row.split(b",", 5)[-1] == b"%b,%b]" % (written, data):
            return row, codec.decode(plain)
        recorded = read_step(self._payloads, row)
        own = type(recorded.result) is Sealed and recorded.result.data == data
        if own or (chunks and recorded.sha256 == sha256.decode()):
            return row, codec.decode(plain)
        return row, await self.result(keys, entry, recorded)

    async def result(self, keys: TaskKeys, entry: str, note: StepRecord | bytes) -> Any:
        """Return a recorded step's result, fetched if it is large. The note may be a row as it is.

        Errors: CorruptState if its chunks are not what was written.
        """
        if isinstance(note, bytes):
            note = read_step(self._payloads, note)
        data: bytes | None = None
        if note.chunks:
            gone = CorruptState(keys.journal, f"a chunk of {entry!r} is gone")
            names = (part_name(entry, number) for number in range(note.chunks))
            commands = self._scripts.transport.commands
            chunks = read_chunks(commands, keys.journal, names, missing=gone)
            data = b"".join([chunk async for chunk in chunks])
        return await fetch_result(self._payloads, keys, entry, note, data)

    async def _keep(self, keys: TaskKeys, entry: str, data: bytes, run: Replay) -> int:
        starts = range(0, len(data), CHUNK_BYTES)
        for number, start in enumerate(starts):
            reply = await self._scripts.keep_part(
                keys,
                mark=run.mark,
                entry=entry,
                number=number,
                data=data[start : start + CHUNK_BYTES],
            )
            if reply.word is ReplyCode.STALE:
                break
            run.raise_refused(reply, what=keys.task_id)
        return len(starts)


def read_entries(
    payloads: Payloads, task_id: str, named: Iterable[tuple[str, bytes]], *, whole: bool
) -> dict[str, Any]:
    """Read the entries of a journal. See `Journals.read`."""
    named = list(named)
    try:
        found = {entry: _read_entry(payloads, entry, note) for entry, note in named}
    except (ValueError, TypeError):
        _raise_unreadable(payloads, named)
        raise
    if whole and payloads.met_unreadable:
        for entry, note in named:
            payloads.need_all(note, of=f"task {task_id!r}", field=entry)
    return found


async def fetch_result(
    payloads: Payloads, keys: TaskKeys, entry: str, note: StepRecord, data: bytes | None
) -> Any:
    """Return a recorded step's result; ``data`` are its chunks in one, if it has some.

    Errors: CorruptState if they are not what was written; PayloadLost.
    """
    of, field = f"task {keys.task_id!r}", f"result of {entry}"
    if data is None:
        return await payloads.fetch(note.result, of=of, field=field)
    if len(data) != note.size:
        raise CorruptState(keys.journal, f"{entry!r} has not {note.size} but {len(data)} bytes")
    if hashlib.sha256(data).hexdigest() != note.sha256:
        raise CorruptState(keys.journal, f"the digest of {entry!r} differs from what was recorded")
    return await payloads.fetch(payloads.decode(data), of=of, field=field)


def state_of(lane: Lane | None) -> LaneState:
    """Write where a lane stands, for the script that writes an entry."""
    return NO_LANE if lane is None else lane.state()


def failures_of(journal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps that have failed, by their entries, without those that are recorded."""
    return {
        entry: note
        for name, note in journal.items()
        if name.startswith(FAILED) and (entry := name.removeprefix(FAILED)) not in journal
    }


def part_name(entry: str, number: int) -> bytes:
    """Return the journal entry of one chunk of a large result."""
    return raw(f"part:{number}:{entry}")


def read_step(payloads: Payloads, data: bytes) -> StepRecord:
    """Read a step's note. Errors: ValueError."""
    version, epoch, at_ms, checkpoint, about, result = payloads.unpack(data, 6)
    # Earlier versions wrote no more than the first three.
    size, chunks, sha256, *more = about
    number, place, took_ms, attempts = (more + [None, 0, 0, 0][len(more) :])[:4]
    return StepRecord(
        *(version, epoch, at_ms, checkpoint, size, chunks, sha256, result),
        *(number, place, took_ms, attempts),
    )


def steps_of(journal: Mapping[str, Any]) -> list[tuple[str, StepRecord]]:
    """List the steps of a journal in the order of their records."""
    steps = [(entry, note) for entry, note in journal.items() if isinstance(note, StepRecord)]
    return sorted(steps, key=lambda named: named[1].version)


def joined_child(entry: str, journal: Mapping[str, Any]) -> str | None:
    """Return the entry of the child whose end a step records; None for any other step.

    Names may hold anything: what counts is that the journal has that child.
    """
    for found in _JOIN.finditer(entry):
        child = _CHILD + entry[found.end() :].rpartition("#")[0].replace("##", "#")
        if child in journal:
            return child
    return None


def received(journal: Mapping[str, Any]) -> dict[str, int]:
    """List the messages that a handler has received, each with its place in the handler.

    That is 0 for one of a step's work, and where an earlier version recorded it. Messages inside of
    a recorded step are left out: the step's work does not run again.
    """
    return {
        entry: int(journal.get(PLACE + entry, 0))
        for entry in journal
        if entry.startswith(_RECEIVED)
        and not any(outer in journal for outer in _outer_steps(entry))
    }


def unvisited(recorded: Collection[str], requested: Collection[str]) -> list[str]:
    """List the entries that earlier runs recorded and this one did not use, but should have.

    Entries inside of a recorded step, or failure, are left out: its work does not run again.
    """
    return sorted(
        entry
        for entry in recorded
        if entry.startswith(_ASKED_FOR)
        and entry not in requested
        and not any(
            outer in recorded or FAILED + outer in recorded for outer in _outer_steps(entry)
        )
    )


def is_inside(entry: str, outer: str) -> bool:
    """Return whether an entry was made in the work of a step, whose entry is ``outer``.

    A key may hold anything: that of a step beside it may begin with this step's and a slash.
    """
    path, start = entry.partition(":")[2], outer.partition(":")[2] + "/"
    return path.startswith(start) and _INSIDE.match(path, len(start)) is not None


def _outer_steps(entry: str) -> Iterable[str]:
    path = entry.partition(":")[2]
    places = [place for place, sign in enumerate(path) if sign == "/"]
    return (_STEP + path[:place] for place in places if _INSIDE.match(path, place + 1))


def _raise_unreadable(payloads: Payloads, named: Iterable[tuple[str, bytes]]) -> None:
    """Errors: DecodeError, which names the first entry that cannot be read."""
    for entry, note in named:
        try:
            _read_entry(payloads, entry, note)
        except (ValueError, TypeError) as error:
            why = f"the entry {entry!r} of its journal: {codec.reason_of(error)}"
            raise codec.DecodeError(why) from None


def _count(written: Any) -> int:
    """Read how many entries were written. Errors: DecodeError."""
    try:
        return int(written)
    except ValueError:
        raise codec.DecodeError("the count of entries of its journal: no number") from None


def _texts(named: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, bytes]]:
    return ((entry.decode("utf-8", "surrogatepass"), note) for entry, note in named)


def _read_entry(payloads: Payloads, entry: str, note: bytes) -> Any:
    return read_step(payloads, note) if entry.startswith(_STEP) else payloads.decode(note)
