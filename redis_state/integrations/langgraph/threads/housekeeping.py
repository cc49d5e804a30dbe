"""Delete, prune and copy threads."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.errors import InvalidField
from redis_state.integrations.langgraph.threads.claims import ThreadClaims
from redis_state.integrations.langgraph.threads.pruning import Pruning
from redis_state.integrations.langgraph.threads.stored import tails
from redis_state.integrations.langgraph.threads.stored.places import split_place, thread_of
from redis_state.integrations.langgraph.threads.stored.rows import Rows, read_head
from redis_state.integrations.langgraph.threads.threads import Threads

_WHOLE = 20


class Housekeeping:
    """What removes checkpoints, and copies them."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims
        self._pruning = Pruning(threads, rows, claims)

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        thread_id = thread_of(thread_id, "thread_id")
        try:
            await self._threads.delete(thread_id, claim=self._claims.held(thread_id))
        finally:
            self._threads.newest.forget_thread(thread_id)

    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs."""
        runs = {thread_of(run_id, "run_ids") for run_id in _listed("run_ids", run_ids)}
        threads = {thread for run in sorted(runs) for thread in await self._threads.runs(run)}
        for thread_id in sorted(threads):
            await self._pruning.delete_runs(thread_id, runs)

    async def prune(self, thread_ids: Sequence[str], *, strategy: str) -> None:
        """Drop all checkpoints of threads, or all but the newest of each namespace."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidField("strategy", f"{strategy!r} is neither keep_latest nor delete")
        for given in _listed("thread_ids", thread_ids):
            thread_id = thread_of(given, "thread_ids")
            if strategy == "delete":
                await self.delete_thread(thread_id)
            else:
                await self._pruning.keep_latest(thread_id)

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all checkpoints and writes of a thread."""
        source = thread_of(source, "source_thread_id")
        target = thread_of(target, "target_thread_id")
        if source == target:
            return
        for newest in await self._threads.namespaces(source):
            scope = split_place(newest)[0]
            places = [place for place, _ in await self._threads.all_of(source, scope)]
            # Of each that the target has: its values, and those that these continue.
            copied: dict[bytes, set[bytes]] = {}
            for first in range(0, len(places), _WHOLE):
                part = places[first : first + _WHOLE]
                await self._copy(source, target, scope, part, copied)

    async def _copy(
        self,
        source: str,
        target: str,
        scope: str,
        places: list[bytes],
        copied: dict[bytes, set[bytes]],
    ) -> None:
        claim = self._claims.held(target)
        async for found in self._threads.read(source, places):
            if found is None:
                continue
            of = f"thread {source!r}"
            head = read_head(found.row, of=of)[0]
            names = [f"{scope}{name}".encode() for name in head.names]
            # What the parent has is left out, so the put needs the parent to be there.
            parent = f"{scope}{head.parent}".encode() if head.parent else b""
            known = copied.get(parent)
            left = [name for name in names if name in found.values]
            values: list[bytes] = []
            whole: set[bytes] = set()
            while left:
                name = left.pop()
                data = found.values.get(name)
                if data is None or name in whole:
                    continue
                whole.add(name)
                if known is None or name not in known:
                    values += name, data
                if data.startswith(tails.SIGN):
                    left.append(tails.read(data).base)
            copied[found.place] = whole
            # Writes come first: who reads the checkpoint finds them.
            tasks: dict[str, list[bytes]] = {}
            for line, data in zip(found.writes[::2], found.writes[1::2], strict=True):
                task, index, _, channel = line.decode().split(" ")
                tasks.setdefault(task, []).extend((index.encode(), channel.encode(), data))
            for task, writes in tasks.items():
                await self._threads.put_writes(target, found.place, task, writes, claim=claim)
            kept = await self._threads.put(
                target,
                found.place,
                found.row,
                values,
                parent=b"" if known is None else parent,
                run=head.run,
                claim=claim,
            )
            if kept is None:
                # The target is not what was copied: each value stands alone.
                copied[found.place] = {name for name in names if name in found.values}
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


def _listed(field: str, given: Sequence[str]) -> Sequence[str]:
    if isinstance(given, (str, bytes)):
        raise InvalidField(field, "a list is needed, not one text")
    return given
