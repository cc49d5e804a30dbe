"""Erase one session in Redis and in the store of claims.

    objects of claims          before what names them
    events of traces           before what names the traces, and once more behind it
    tasks end their leases     a run that still works is refused from then on, and none can begin
    what stands elsewhere      entries in lists of all sessions, artifacts, traces, agents' sessions
    the session's slot         all keys, until a walk finds none
    memories and artifacts     behind the archive, with a user's name: they name the session too
    the index of tasks         last, behind the archive: it names the session for a repetition

Every step may be repeated. A crash leaves what a repetition finds: by the index of tasks, by the
names of keys, and by the session's id.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

from redis_state.erasure.finding import SessionFinder
from redis_state.erasure.memories import delete_memories
from redis_state.erasure.naming import artifact_in, field_of, names_user
from redis_state.erasure.walking import FoundKey, SessionFindings
from redis_state.models.erasure import ErasureReport
from redis_state.primitives.listing import ShardedListing
from redis_state.scripts import GraphListing, raw, topic_bytes
from redis_state.serialization import codec
from redis_state.stores.archive_list import (
    agent_session_entry,
    artifact_entry,
    event_entry,
    session_entry,
)
from redis_state.stores.index_walk import listed_under
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.stores.task_index import TaskIndex
from redis_state.stores.traces.audit_events import GLOBAL_TRACE
from redis_state.stores.traces.trajectories import trajectory_entry
from redis_state.transport.key_text import is_digest, unescape
from redis_state.transport.keys import (
    GRAPH_SHARDS,
    WATCH_SHARDS,
    agent_shard,
    artifact_place,
    graph_shard,
    graph_task,
)

_PAGE = 5_000
# Walks until nothing is found: what a host writes meanwhile without a lease.
_WALKS = 5
# What erasing itself writes: the ends of leases, and replies of calls that are made once.
_MADE_HERE = frozenset({"lease", "call"})


class SessionErasure(SessionFinder):
    """Erase sessions of one store, one at a time."""

    async def erase(
        self,
        found: SessionFindings,
        claims: Collection[bytes],
        report: ErasureReport,
        *,
        traces: Collection[str] = (),
        keeps: Collection[str] = (),
    ) -> SessionFindings:
        """Erase what was found, and what comes meanwhile, with what is kept of its ``traces``.

        Of those that another session has it ``keeps`` what is not the session's own. What it
        returns is for `forget_tasks`: the index still names the tasks.
        """
        session_id, store = found.session_id, self._store
        await self._delete_claims(claims, report)
        # While the tasks still name them: a repetition would not find them otherwise.
        await self._delete_traces(session_id, traces, keeps)
        # The index does not name those of hosts.
        await self._unlist_tasks(found)
        await self._each(lambda task: store.tasks.clear(session_id, task), sorted(found.tasks))
        self._progress("tasks", len(found.tasks))
        await self._delete_elsewhere(found, traces, keeps)
        self._progress("entries elsewhere", len(found.tasks))
        for _ in range(_WALKS):
            names = [key.name for key in found.keys if not names_user(key)]
            await self._each(self._commands.unlink, names)
            # Also if none was left: a call that was interrupted may have removed them.
            await store.updates.call_followers(session_id)
            await store.steering.call_followers(session_id)
            memories = [key for key in found.memories if not names_user(key)]
            await delete_memories(self._store, memories)
            self._progress("keys removed", len(names) + len(memories))
            again = await self.find([session_id])
            found, was = again[session_id], found
            found.tasks |= was.tasks
            late = [key for key in (*found.keys, *found.memories) if not names_user(key)]
            if found.tasks == was.tasks and all(key.kind in _MADE_HERE for key in late):
                # No other walk: this has found no other writer's.
                await self._each(self._commands.unlink, [key.name for key in late])
                break
            await self._each(
                lambda task: store.tasks.clear(session_id, task),
                sorted(found.tasks - was.tasks),
            )
            await self._delete_elsewhere(found, (), keeps)
        else:
            report.failed["late writes"] = (
                f"{len(found.keys)} keys: the session is still being written"
            )
        return found

    async def _delete_claims(self, claims: Collection[bytes], report: ErasureReport) -> None:
        # If that fails, what names them is still there, for the repetition.
        done = await self._each(self._store.base.payloads.delete_claim, sorted(claims))
        left = sum(not each for each in done)
        report.claims += len(done) - left
        if left:
            report.failed["claims"] = f"{left} objects: no store of claims here has them"

    async def _delete_elsewhere(
        self, found: SessionFindings, also: Collection[str], keeps: Collection[str]
    ) -> None:
        session_id, keys, scripts = found.session_id, self._keys, self._scripts
        # By their beginnings: a run may have been stopped between the list and the thing.
        dead = codec.encode([session_id])[:-1] + b","
        await self._remove_beginning(keys.dead_tasks(), dead)
        slot = keys.tasks(session_id).removesuffix("tasks")
        for listed in (keys.open_pauses(), keys.opened_pauses()):
            await self._remove_beginning(listed, raw(f"{slot}token:"))
        await self._unlist_tasks(found)
        for key_of in (keys.archive_sessions, keys.archive_sessions_since):
            await self._remove_sharded(key_of, [session_entry(session_id)])
        await self._delete_traces(session_id, also, keeps)
        records = [agent_session_entry(session_id)]
        kept = keys.artifacts(artifact_place(session_id)).references
        records += [artifact_entry(session_id, each) for each in await self._members(kept)]
        for key_of in (keys.archive_records, keys.archive_records_since):
            await self._remove_sharded(key_of, records)
        await self._remove(keys.artifact_sessions(), [raw(artifact_place(session_id))])
        shard = agent_shard(session_id)
        await scripts.delete_session(
            keys.agent_session(session_id),
            index=keys.agent_sessions(shard),
            expiries=keys.agent_expiries(shard),
            session_id=session_id,
        )
        await self._commands.unlink(keys.agent_lease(session_id))
        await self._delete_threads(session_id)
        await self._delete_jobs(session_id)
        for schedule_id in await self.schedules(session_id):
            await self._remove(keys.schedules_due(), [raw(schedule_id)])
            await self._remove(keys.schedules(), [topic_bytes(schedule_id)])
            await self._commands.unlink(keys.schedule(schedule_id))

    async def _unlist_tasks(self, found: SessionFindings) -> None:
        """Take the tasks off the archive's list."""
        entries = [watch_entry(found.session_id, task) for task in sorted(found.tasks)]
        for key_of in (self._keys.archive_watch, self._keys.archive_since):
            await self._remove_sharded(key_of, entries)

    async def _delete_traces(
        self, session_id: str, also: Collection[str], keeps: Collection[str]
    ) -> None:
        keys = self._keys
        traces = {*await self._store.trajectories.traces(session_id, limit=1_000_000), *also}
        records = [trajectory_entry(session_id, trace) for trace in sorted(traces)]
        # Events of a trace that stays wait for the archive.
        records += [
            event_entry(trace)
            for trace in sorted(traces)
            if trace not in keeps and not await self._is_shared(trace, session_id)
        ]
        for key_of in (keys.archive_records, keys.archive_records_since):
            await self._remove_sharded(key_of, records)
        await self._store.traces.clear(session_id, also=sorted(also), keeps=keeps)

    async def _delete_threads(self, session_id: str) -> None:
        """Delete the threads of the session's tasks, and list neither them nor its own."""
        keys, begin = self._keys, raw(graph_task(session_id, ""))
        shards = [
            GraphListing(keys.graph_threads(n), keys.graph_expiries(n)) for n in range(GRAPH_SHARDS)
        ]
        listing = ShardedListing(self._scripts, shards, size=_PAGE)
        async with aclosing(listing.pages(b"[" + begin, begin=begin)) as pages:
            async for page in pages:
                for shard, entry, stamp in page:
                    thread = entry.decode("utf-8", "surrogatepass")
                    parts = (keys.graph_thread, keys.graph_order, keys.graph_puts)
                    await self._each(self._commands.unlink, [key_of(thread) for key_of in parts])
                    await listing.leave(shard, entry, stamp)
        own = [key_of(session_id) for key_of in (keys.graph_thread, keys.graph_order)]
        await listing.remove(
            graph_shard(session_id),
            raw(session_id),
            lambda: self._each(self._commands.unlink, own),
        )

    async def _delete_jobs(self, session_id: str) -> None:
        keys = self._keys
        for job_id in await self._jobs(session_id):
            for index in (keys.jobs_due(), keys.jobs()):
                await self._remove(index, [topic_bytes(job_id)])
            runs = keys.job_runs(job_id)
            await self._each(self._commands.unlink, [runs.rows, runs.ids, keys.job(job_id)])
        await self._commands.unlink(keys.jobs_of(session_id))

    async def forget_tasks(self, found: SessionFindings) -> None:
        """Delete what names the user, and take the tasks out of the watch list and the index.

        Those that were made again stay. It comes last: a user's session is found by these, for a
        repetition.
        """
        session_id, store = found.session_id, self._store
        await self._each(self._delete_artifact, [key for key in found.keys if names_user(key)])
        await delete_memories(store, [key for key in found.memories if names_user(key)])
        index = TaskIndex(self._scripts, self._keys)
        listed = await listed_under(store.base, "s", raw(session_id))
        stamps = {each.task_id: each.stamp for each in listed if each.session_id == session_id}
        for task_id in sorted(found.tasks | stamps.keys()):
            if await store.tasks.look(session_id, task_id) is not None:
                continue
            entry = watch_entry(session_id, task_id)
            await self._remove_sharded(self._keys.watch, [entry])
            if task_id in stamps:
                await index.remove(entry, stamp=stamps[task_id])

    async def _delete_artifact(self, key: FoundKey) -> None:
        """Delete an artifact, unless it was put again since its books were removed."""
        books, artifact = self._keys.artifacts(key.tag), unescape(key.rest.partition(":")[2])
        if is_digest(artifact):
            reference = await self._commands.hget(key.name, field_of(key) or "")
            if reference is None:
                # It went with its blob.
                return
            artifact = artifact_in(reference)
        if key.name in (books.blob(artifact), books.reference(artifact)):
            await self._scripts.drop_unlisted_blob(books, blob_id=artifact)
        else:
            # Nobody can put it: its name is of no artifact.
            await self._commands.unlink(key.name)

    async def _is_shared(self, trace_id: str, session_id: str) -> bool:
        others = set(await self._members(self._keys.trace_sessions(trace_id))) - {session_id}
        return bool(others) or trace_id == GLOBAL_TRACE

    async def _remove_sharded(self, key_of: Callable[[int], str], entries: Sequence[bytes]) -> None:
        by_shard: dict[int, list[bytes]] = {}
        for entry in entries:
            by_shard.setdefault(zlib.crc32(entry) % WATCH_SHARDS, []).append(entry)
        for shard, some in by_shard.items():
            await self._remove(key_of(shard), some)

    async def _remove_beginning(self, index: str, beginning: bytes) -> None:
        """Remove the members of a list of all sessions that begin so."""
        async for page in self._commands.zscan_all(index, count=_PAGE):
            found = [member for member in page if member.startswith(beginning)]
            if found:
                await self._scripts.zrem(index, *found)

    async def _remove(self, index: str, members: Sequence[bytes]) -> None:
        """Remove members of a list of all sessions, if it is there and has any."""
        there = [
            member
            for member, score in zip(
                members,
                await self._each(lambda one: self._commands.zscore(index, one), members),
                strict=True,
            )
            if score is not None
        ]
        if there:
            await self._scripts.zrem(index, *there)
