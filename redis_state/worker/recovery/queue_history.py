"""The history of the queues: what notices that their server has lost a part of it.

A sweeper that has seen the job of a waiting task inspects the task seldom. The job may vanish
nevertheless: the server of the queues goes back to an earlier state, or is emptied. Then the
history of the queues is another one: another process, another line of replication, or another
random id in their slot. Each shard of the watch list has the history that its entries were compared
with. If that is not the queues', the shard's tasks that are PENDING are made due soon. The sweepers
inspect them in the usual way.

Queues on a server of their own stay as they are when the store goes back to an earlier state. Then
a task may wait again whose job has ended. So its server's history is compared in the same way.

On a cluster the queues have one slot, and so one node. The other nodes have watch lists and
records, and each may go back alone. So what all primaries say of themselves is compared too. It is
read when a connection was made, for a node that starts again ends all it had; and with each regular
comparison. Records and entries do not go back together then, so all unfinished tasks are hastened.

The tasks are read page by page from the index, which has the shard's slot. A page is hastened in
each round. The shard has the new history once all its pages are hastened: a process that dies
before leaves the work to the next. A history that changes meanwhile is found in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from redis_state.models import TaskStatus
from redis_state.primitives.lease import new_owner
from redis_state.primitives.record import new_write_id
from redis_state.scripts import Reply, ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.stores.task_index import LETTERS
from redis_state.transport.cluster.node_histories import node_histories
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.queue.queue import Queue

# Also of shards whose own history may have gone back since.
_COMPARE_EVERY_S = 30.0
# A process that does a page in each round is slower only if it stands still.
_HOLD_MS = 10_000
_PAGE = 500
# On one server a task and its entry go back together. On a cluster the entry may rest that was put
# off for a pause, and the record be PENDING again.
_WAITING = LETTERS[TaskStatus.PENDING]
_UNFINISHED = _WAITING + LETTERS[TaskStatus.RUNNING] + LETTERS[TaskStatus.PAUSED]
# What is hastened must not hold up what is due: a sweeper inspects more entries of a shard than one
# in so many ms.
_STEP_MS = 5


@dataclass(slots=True)
class _Walk:
    """How far the tasks of a shard are hastened: up to which place of the index, and how many."""

    place: bytes = b""
    hastened: int = 0
    began_s: float = 0.0


class QueueHistory:
    """Compare the queues' history with what the watch list was compared with, and hasten.

    ``picking`` if arq's own runner picks the process's jobs, which are listed nowhere then.
    """

    def __init__(self, store: RedisStateStore, queue: Queue, *, picking: bool = False) -> None:
        self._scripts = store.base.scripts
        self._transport = store.transport
        self._commands = store.transport.commands
        self._keys = store.base.keys
        self._queue = queue
        self._picking = picking
        self._walker = new_owner()
        # The store's server, if the queues have another one.
        self._apart = queue.transport is not store.transport
        self._is_cluster = store.transport.address.is_cluster
        # When the nodes were asked last: how many connections had been made.
        self._connections = -1
        self._history = ""
        self._store_history: str = ""
        self._nodes: str = ""
        self._walks: dict[int, _Walk] = {}
        self._compare_at_s = 0.0
        self.watches: bool = False

    @property
    def current(self) -> str:
        """The histories as they were found last, "" before that."""
        return " ".join(filter(None, (self._history, self._store_history, self._nodes)))

    async def run_once(self) -> bool:
        """Compare, and hasten a page of each shard that has another history.

        Return whether pages are left. While nothing is lost, it is one read of each server, and
        twice a minute one of each node of a cluster. Errors: BackendError.
        """
        self.watches = False
        history, picking = await self._queue.history(picking=self._picking)
        stores = await self._of_store() if self._apart else ""
        nodes = await self._of_nodes() if self._is_cluster else ""
        knows_store = (stores or not self._apart) and (nodes or not self._is_cluster)
        self.watches = bool(history and knows_store) and not picking
        if not history:
            return False
        found = history, stores, nodes
        is_other = found != (self._history, self._store_history, self._nodes)
        if is_other or monotonic() >= self._compare_at_s:
            self._walks = {shard: _Walk() for shard in range(WATCH_SHARDS)}
            self._history, self._store_history, self._nodes = found
            self._compare_at_s = monotonic() + _COMPARE_EVERY_S
            compared = await asyncio.gather(*map(self._compared_with, range(WATCH_SHARDS)))
            for shard, was in enumerate(compared):
                if was == found or (not any(was) and await self._is_new(shard)):
                    del self._walks[shard]
        hastened = await asyncio.gather(*(self._hasten(*each) for each in self._walks.items()))
        for shard, count in zip(list(self._walks), hastened, strict=True):
            if count is None:
                del self._walks[shard]
        return bool(self._walks)

    async def _of_store(self) -> str:
        """Return the history of the store's server, "" if it does not say."""
        reply = await self._scripts.know_history(
            self._keys.queue_history(), id=new_write_id(), picking=False
        )
        return reply.text(0)

    async def _of_nodes(self) -> str:
        """Return the history of the cluster's nodes, "" if one does not say."""
        connections = self._transport.sender.connections
        if connections == self._connections and monotonic() < self._compare_at_s:
            return self._nodes
        nodes = await node_histories(self._transport)
        self._connections = connections
        return nodes

    async def _compared_with(self, shard: int) -> tuple[str, str, str]:
        key = f"{self._keys.watch(shard)}:history"
        held = await self._commands.hmget(key, "history", "store", "nodes")
        history, stores, nodes = ((each or b"").decode() for each in held)
        return history, stores, nodes

    async def _is_new(self, shard: int) -> bool:
        """Note the history of a shard that was never compared; return whether that is all.

        On one server it is: what a client has put is due soon, and goes back with its job.
        """
        if self._apart or self._is_cluster:
            return False
        noted = await self._write(shard, _Walk(), [], last=True)
        return noted.word is ReplyCode.OK

    async def _hasten(self, shard: int, walk: _Walk) -> int | None:
        """Hasten a page of a shard; None if all of it is compared with this history."""
        if not walk.began_s:
            # Before the first page is read: only one process reads.
            held = await self._write(shard, walk, [], last=False)
            if held.word is not ReplyCode.OK or held.facts[0]:
                return None if held.word is ReplyCode.OK else 0
            walk.began_s = monotonic()
        more, last, *facts = (
            await self._scripts.find_tasks(
                self._keys.task_index(shard),
                kind="*",
                value=b"",
                statuses=_UNFINISHED if self._is_cluster else _WAITING,
                newest=False,
                low=b"(" + walk.place if walk.place else b"[",
                high=b"(\xff",
                size=_PAGE,
                most=_PAGE,
                wanted=[],
            )
        ).facts
        entries = [
            watch_entry(_text(session_id), _text(task_id))
            for session_id, task_id in zip(facts[2::5], facts[3::5], strict=True)
        ]
        reply = await self._write(shard, walk, entries, last=not more)
        if reply.word is not ReplyCode.OK:
            # It stood still, and another process has begun.
            self._walks[shard] = _Walk()
            return 0
        walk.place, walk.hastened = bytes(last), walk.hastened + len(entries)
        return None if reply.facts[0] else len(entries)

    async def _write(
        self, shard: int, walk: _Walk, entries: Sequence[bytes], *, last: bool
    ) -> Reply:
        # Behind the pages before.
        due_s = walk.began_s + walk.hastened * _STEP_MS / 1000
        return await self._scripts.hasten_entries(
            self._keys.watch(shard),
            walker=self._walker,
            hold_ms=_HOLD_MS,
            history=self._history,
            store=self._store_history,
            nodes=self._nodes,
            all=last,
            first_ms=max(0, round((due_s - monotonic()) * 1000)),
            step_ms=_STEP_MS,
            entries=entries,
        )


def _text(fact: bytes) -> str:
    return fact.decode("utf-8", "surrogatepass")
