"""Delete, prune and copy threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis_state.errors import InvalidField
from redis_state.integrations.langgraph import tails
from redis_state.integrations.langgraph.claims import ThreadClaims
from redis_state.integrations.langgraph.places import split_place, thread_of
from redis_state.integrations.langgraph.rows import Head, Rows, read_head
from redis_state.integrations.langgraph.threads import Threads

# Checkpoints that one step drops.
_STEP = 200
_WHOLE = 20
_DELTAS = "counters_since_delta_snapshot"

Row = tuple[bytes, bytes]


class Housekeeping:
    """What removes checkpoints, and copies them."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        thread_id = thread_of(thread_id, "thread_id")
        await self._threads.delete(thread_id, claim=self._claims.held(thread_id))

    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs."""
        runs = {thread_of(run_id, "run_ids") for run_id in _listed("run_ids", run_ids)}
        threads = {thread for run in sorted(runs) for thread in await self._threads.runs(run)}
        for thread_id in sorted(threads):
            await self._drop(thread_id, lambda rows, _: self._of_runs(rows, runs))

    async def prune(self, thread_ids: Sequence[str], *, strategy: str) -> None:
        """Drop all checkpoints of threads, or all but the newest of each namespace."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidField("strategy", f"{strategy!r} is neither keep_latest nor delete")
        for given in _listed("thread_ids", thread_ids):
            thread_id = thread_of(given, "thread_ids")
            if strategy == "delete":
                await self.delete_thread(thread_id)
            else:
                await self._drop(thread_id, self._older)

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all checkpoints and writes of a thread."""
        source = thread_of(source, "source_thread_id")
        target = thread_of(target, "target_thread_id")
        if source == target:
            return
        for newest in await self._threads.namespaces(source):
            scope = split_place(newest)[0]
            places = [place for place, _ in await self._threads.all_of(source, scope)]
            copied: set[bytes] = set()
            for first in range(0, len(places), _WHOLE):
                part = places[first : first + _WHOLE]
                await self._copy(source, target, scope, part, copied)

    async def _copy(
        self, source: str, target: str, scope: str, places: list[bytes], copied: set[bytes]
    ) -> None:
        claim = self._claims.held(target)
        async for found in self._threads.read(source, places):
            if found is None:
                continue
            of = f"thread {source!r}"
            head = read_head(found.row, of=of)[0]
            names = [f"{scope}{name}".encode() for name in head.names]
            left = [name for name in names if name in found.values]
            values: list[bytes] = []
            while left:
                name = left.pop()
                data = found.values.get(name)
                if data is not None and name not in copied:
                    values += name, data
                    copied.add(name)
                    if data.startswith(tails.SIGN):
                        left.append(tails.read(data).base)
            # Writes come first: who reads the checkpoint finds them.
            tasks: dict[str, list[bytes]] = {}
            for line, data in zip(found.writes[::2], found.writes[1::2], strict=True):
                task, index, _, channel = line.decode().split(" ")
                tasks.setdefault(task, []).extend((index.encode(), channel.encode(), data))
            for task, writes in tasks.items():
                await self._threads.put_writes(target, found.place, task, writes, claim=claim)
            kept = await self._threads.put(
                target, found.place, found.row, values, run=head.run, claim=claim
            )
            if kept is None:
                # The target is not what was copied: each value stands alone.
                copied.difference_update(values[::2])
                copied.update(name for name in names if name in found.values)
                values = [
                    part
                    for name in names
                    if name in found.values
                    for part in (
                        name,
                        self._rows.sealed(self._rows.whole_value(name, found.values, of=of)),
                    )
                ]
                await self._threads.put(
                    target, found.place, found.row, values, run=head.run, claim=claim
                )

    async def _drop(self, thread_id: str, choose: Callable[[list[Row], str], set[bytes]]) -> None:
        """Drop the checkpoints of a thread that are chosen among those of each namespace."""
        of = f"thread {thread_id!r}"
        for newest in await self._threads.namespaces(thread_id):
            scope = split_place(newest)[0]
            while True:
                listed = await self._threads.all_of(thread_id, scope)
                # A server that evicts keys may have taken the rows.
                rows = [(place, row) for place, row in listed if row]
                heads = {place: read_head(row, of=of)[0] for place, row in rows}
                there = {place for place, _ in listed}
                if await self._drop_of(thread_id, scope, there, heads, choose(rows, of)):
                    break

    async def _drop_of(
        self,
        thread_id: str,
        scope: str,
        there: set[bytes],
        heads: dict[bytes, Head],
        chosen: set[bytes],
    ) -> bool:
        """Drop checkpoints step by step, the oldest first; return False if others came or went.

        A value is dropped in the step with the last checkpoint that has it.
        """
        going = [place for place in heads if place in chosen]
        if not going:
            return True
        needed = await self._needed(thread_id, scope, heads)
        last: dict[bytes, bytes | None] = {}
        for place in (*going, *(place for place in heads if place not in chosen)):
            for name in needed[place]:
                last[name] = place if place in chosen else None
        for first in range(0, len(going), _STEP):
            places = going[first : first + _STEP]
            names = [name for place in places for name in needed[place] if last[name] == place]
            done = await self._threads.drop(
                thread_id,
                scope,
                listed=there,
                places=places,
                names=names,
                claim=self._claims.held(thread_id),
            )
            if not done:
                return False
            there.difference_update(places)
        return True

    async def _needed(
        self, thread_id: str, scope: str, heads: dict[bytes, Head]
    ) -> dict[bytes, set[bytes]]:
        """Return the values that checkpoints need: their own, and those that these continue."""
        needed = {
            place: {f"{scope}{name}".encode() for name in head.names}
            for place, head in heads.items()
        }
        bases = await self._threads.bases(thread_id, set[bytes]().union(*needed.values()))
        for names in needed.values():
            left = list(names)
            while left:
                base = bases.get(left.pop())
                if base is not None and base not in names:
                    names.add(base)
                    left.append(base)
        return needed

    def _of_runs(self, rows: list[Row], runs: set[str]) -> set[bytes]:
        return {place for place, row in rows if read_head(row, of="thread")[0].run in runs}

    def _older(self, rows: list[Row], of: str) -> set[bytes]:
        """Choose all but the newest, and the ancestors that its delta channels need."""
        if not rows:
            return set()
        by_place = dict(rows)
        place, row = rows[-1]
        metadata: dict[str, Any] = self._rows.read_row(row, of=of)[2]
        wanted = set(metadata.get(_DELTAS) or ())
        kept = {place}
        scope, _ = split_place(place)
        parent = read_head(row, of=of)[0].parent
        while parent is not None and wanted:
            place = f"{scope}{parent}".encode()
            row = by_place.get(place, b"")
            if not row:
                break
            kept.add(place)
            head, _, about = self._rows.read_row(row, of=of)
            # A channel that has no counter there has its snapshot there.
            wanted &= set(about.get(_DELTAS) or ())
            parent = head.parent
        return by_place.keys() - kept


def _listed(field: str, given: Sequence[str]) -> Sequence[str]:
    if isinstance(given, (str, bytes)):
        raise InvalidField(field, "a list is needed, not one text")
    return given
