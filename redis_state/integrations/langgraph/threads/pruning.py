"""Drop checkpoints of a thread, with the values that no other needs, while others write to it.

The checkpoints of a namespace are listed once. What is put from then on is spared: see `threads`.
So the number of steps is that of the checkpoints that were there, over 200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redis_state.errors import Conflict, CorruptState, PayloadUnreadable
from redis_state.integrations.langgraph.threads.claims import ThreadClaims
from redis_state.integrations.langgraph.threads.puts import PutsSeen
from redis_state.integrations.langgraph.threads.stored.places import split_place
from redis_state.integrations.langgraph.threads.stored.rows import Head, Rows, read_head
from redis_state.integrations.langgraph.threads.threads import Threads

# Checkpoints that one step drops.
_STEP = 200
_DELTAS = "counters_since_delta_snapshot"
# Listings at most: one is enough unless a list of puts is lost on the way.
_TRIES = 20


class Pruning:
    """Drop checkpoints of one thread at a time."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims

    async def delete_runs(self, thread_id: str, runs: set[str]) -> None:
        """Delete the checkpoints that a thread has of runs."""

        def of_runs(rows: dict[bytes, bytes], heads: dict[bytes, Head]) -> set[bytes]:
            return {place for place in rows if heads[place].run in runs}

        try:
            await self._drop(thread_id, of_runs, forks=False)
        finally:
            self._threads.newest.forget_thread(thread_id)

    async def keep_latest(self, thread_id: str) -> None:
        """Drop all but the newest of each namespace, and the ancestors that these need."""
        of = f"thread {thread_id!r}"

        def older(rows: dict[bytes, bytes], heads: dict[bytes, Head]) -> set[bytes]:
            return rows.keys() - self._lineage(rows, heads, of=of)

        await self._drop(thread_id, older, forks=True)

    async def _drop(
        self,
        thread_id: str,
        choose: Callable[[dict[bytes, bytes], dict[bytes, Head]], set[bytes]],
        *,
        forks: bool,
    ) -> None:
        """Drop the checkpoints that are chosen among those of each namespace.

        With ``forks``, those stay on which others are put meanwhile.
        """
        of = f"thread {thread_id!r}"
        for newest in await self._threads.namespaces(thread_id):
            scope = split_place(newest)[0]
            for _ in range(_TRIES):
                seen = await self._threads.watch_puts(thread_id)
                listed = await self._threads.all_of(thread_id, scope)
                # A server that evicts keys may have taken the rows.
                rows = {place: row for place, row in listed if row}
                heads = {place: read_head(row, of=of)[0] for place, row in rows.items()}
                needed = await self._needed(thread_id, scope, heads)
                steps = _Steps({place for place, _ in listed}, choose(rows, heads), needed)

                def parent_of(
                    place: bytes,
                    rows: dict[bytes, bytes] = rows,
                    heads: dict[bytes, Head] = heads,
                ) -> bytes:
                    return self._needed_parent(place, rows, heads, of=of) if forks else b""

                if await self._steps(thread_id, scope, steps, seen, parent_of, forks=forks):
                    break
            else:
                raise Conflict(f"{of} has puts that are not listed: prune it again later")

    async def _steps(
        self,
        thread_id: str,
        scope: str,
        steps: _Steps,
        seen: PutsSeen,
        parent_of: Callable[[bytes], bytes],
        *,
        forks: bool,
    ) -> bool:
        """Drop step by step, the newest first; return False if the list of puts was lost."""
        while places := steps.next():
            done = await self._threads.drop(
                thread_id,
                scope,
                seen,
                known=len(steps.known),
                newest=steps.newest,
                forks=forks,
                places=[part for place in places for part in (place, parent_of(place))],
                names=steps.names(places),
                claim=self._claims.held(thread_id),
            )
            if done is None:
                return False
            seen = done.seen
            steps.known.difference_update(set(places).difference(done.kept))
            steps.learn(done.puts)
            steps.spare(done.puts)
            steps.keep(done.needed)
            if forks:
                # The script knows the places of one step.
                steps.keep_lineages((*done.parents, *map(parent_of, done.kept)), parent_of)
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

    def _lineage(
        self, rows: dict[bytes, bytes], heads: dict[bytes, Head], *, of: str
    ) -> set[bytes]:
        """Return the newest, and the ancestors that its delta channels need."""
        if not rows:
            return set()
        place = max(rows)
        kept = {place}
        scope, _ = split_place(place)
        wanted = self._deltas(rows[place], of=of)
        parent = heads[place].parent
        while parent is not None and wanted:
            place = f"{scope}{parent}".encode()
            if place not in rows:
                break
            kept.add(place)
            # A channel that has no counter there has its snapshot there.
            wanted &= self._deltas(rows[place], of=of)
            parent = heads[place].parent
        return kept

    def _needed_parent(
        self, place: bytes, rows: dict[bytes, bytes], heads: dict[bytes, Head], *, of: str
    ) -> bytes:
        """Return the place of the parent, if a delta channel needs that, else b""."""
        parent = heads[place].parent
        if parent is None:
            return b""
        try:
            needs = bool(self._deltas(rows[place], of=of))
        except (PayloadUnreadable, CorruptState):
            needs = True
        return f"{split_place(place)[0]}{parent}".encode() if needs else b""

    def _deltas(self, row: bytes, *, of: str) -> set[str]:
        metadata: dict[str, Any] = self._rows.read_row(row, of=of)[2]
        return set(metadata.get(_DELTAS) or ())


class _Steps:
    """What is known of a namespace between two steps, and what the next one drops."""

    def __init__(
        self, known: set[bytes], chosen: set[bytes], needed: dict[bytes, set[bytes]]
    ) -> None:
        self.known: set[bytes] = known
        self.newest: bytes = max(known, default=b"")
        self._needed = needed
        # So none is there without an ancestor that it needs.
        self._left = [place for place in reversed(needed) if place in chosen]
        self._at = 0
        # What may still be kept.
        self._going = set(self._left)
        # A value is dropped in the step with the last checkpoint that has it.
        self._last: dict[bytes, bytes | None] = {}
        for place in (*self._left, *(place for place in needed if place not in chosen)):
            for name in needed[place]:
                self._last[name] = place if place in chosen else None

    def next(self) -> list[bytes]:
        """Take the next places, none at the end."""
        places: list[bytes] = []
        while self._at < len(self._left) and len(places) < _STEP:
            place = self._left[self._at]
            self._at += 1
            if place in self._going:
                self._going.discard(place)
                places.append(place)
        return places

    def learn(self, places: list[bytes]) -> None:
        """Know what others put."""
        self.known.update(places)
        self.newest = max(self.newest, *places) if places else self.newest

    def names(self, places: list[bytes]) -> list[bytes]:
        """Return the values that go with places."""
        last = self._last
        return [name for place in places for name in self._needed[place] if last[name] == place]

    def spare(self, places: Iterable[bytes]) -> None:
        """Keep places that were put again."""
        self._going.difference_update(places)

    def keep(self, names: Iterable[bytes]) -> None:
        """Keep values, which others need."""
        self._last.update(dict.fromkeys(names))

    def keep_lineages(self, places: Iterable[bytes], parent_of: Callable[[bytes], bytes]) -> None:
        """Keep places on which others were put, and those that these need."""
        for given in places:
            place = given
            while place in self._going:
                self._going.discard(place)
                self.keep(self._needed[place])
                place = parent_of(place)
