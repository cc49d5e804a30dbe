"""Find and count what is kept of sessions, before any of it is erased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis_state.erasure.key_owners import LOGS, class_of
from redis_state.erasure.walking import KeyWalk, SessionFindings, sort_key
from redis_state.models.erasure import ErasureReport
from redis_state.scripts import raw, topic_text
from redis_state.serialization.rows import as_object
from redis_state.store import RedisStateStore
from redis_state.stores.index_walk import listed_under
from redis_state.stores.sessions.job_parts import with_whole_job
from redis_state.transport.commands import Commands
from redis_state.transport.key_text import escape, is_digest, unescape
from redis_state.transport.keys import artifact_place

_TOGETHER = 64
Progress = Callable[[str, int], object]


class SessionFinder:
    """Find what a store keeps of sessions. It removes nothing."""

    def __init__(self, store: RedisStateStore, *, progress: Progress | None = None) -> None:
        self._store = store
        self._walk = KeyWalk(store)
        self._progress: Progress = progress or _ignore
        self._scripts = store.base.scripts
        self._keys = store.base.keys
        # Memories that the last walk met, whose keys are digests.
        self.unknown_memories: int = 0

    @property
    def _commands(self) -> Commands:
        # Of the running loop: an eraser may be made outside of one.
        return self._store.transport.commands

    async def find(self, sessions: Collection[str]) -> dict[str, SessionFindings]:
        """Find the keys and the tasks of sessions, in one walk."""
        found = {each: SessionFindings(each) for each in sessions}
        by_tag = {escape("session_id", each): found[each] for each in sessions}
        by_tag |= {artifact_place(each): found[each] for each in sessions}
        seen: set[str] = set()
        unknown = 0
        async for page in self._walk.of_sessions(sessions):
            for key in page:
                if key.name not in seen:
                    seen.add(key.name)
                    unknown += not sort_key(key, found, by_tag)
            self._progress("keys", len(seen))
        self.unknown_memories = unknown
        await asyncio.gather(*map(self._add_tasks, found.values()))
        return found

    async def _add_tasks(self, found: SessionFindings) -> None:
        session_id = found.session_id
        indexed = await listed_under(self._store.base, "s", raw(session_id))
        found.tasks |= {each.task_id for each in indexed if each.session_id == session_id}
        found.tasks |= set(await self._store.tasks.ids(session_id))
        found.tasks |= {
            unescape(key.rest)
            for key in found.keys
            if key.kind in ("task", "journal", "lease") and not is_digest(key.rest)
        }

    async def count(
        self, found: SessionFindings, report: ErasureReport, *, counted: Collection[str] = ()
    ) -> None:
        """Count what was found, by class. Traces that are ``counted`` are not counted again."""
        logs: list[str] = []
        for key in found.keys:
            what = class_of(key.kind)
            if key.kind in LOGS and key.rest.rpartition(":")[2] not in ("ids", "spare"):
                # An earlier development version had a list of numbers for each task.
                if not key.rest.startswith("topic:"):
                    logs.append(key.name)
            elif key.kind == "artifacts":
                report.count("artifacts", int(key.rest.startswith("blob:")))
            elif what and key.kind not in LOGS:
                report.count(what)
        for name, rows in zip(logs, await self._each(self._length, logs), strict=True):
            kind = next(key.kind for key in found.keys if key.name == name)
            report.count(class_of(kind) or kind, int(rows))
        report.count("memories", len(found.memories))
        agents = self._keys.agent_session(found.session_id)
        report.count("agents' sessions", int(await self._commands.exists(agents)))
        report.count("schedules", len(await self.schedules(found.session_id)))
        report.count("scheduled jobs", len(await self._jobs(found.session_id)))
        traces = await self._store.trajectories.traces(found.session_id, limit=1_000_000)
        report.count("traces", len(set(traces) - set(counted)))

    async def claims(self, found: SessionFindings, archived: Collection[bytes]) -> set[bytes]:
        """Return the names of the objects in the store of claims that the session's tasks name.

        With those of archived tasks. Without those of schedules, which give them to tasks of other
        sessions too.
        """
        payloads = self._store.base.payloads
        named = set(archived)
        hashes = [key.name for key in found.keys if key.kind in ("task", "journal")]
        # A session may have more of them than the memory holds.
        for start in range(0, len(hashes), _TOGETHER):
            some = hashes[start : start + _TOGETHER]
            for flat in await self._each(self._fields, some):
                # A name may stand in two parts of a job.
                fields = with_whole_job(dict(zip(flat[::2], flat[1::2], strict=True)))
                for value in fields.values():
                    named |= payloads.claims_in(value)
        if named:
            for schedule_id in await self._members(self._keys.schedules()):
                for value in await self._commands.hgetall(self._keys.schedule(schedule_id)):
                    named -= payloads.claims_in(value)
        return named

    async def schedules(self, session_id: str) -> list[str]:
        """List the schedules that submit into a session, and no other."""
        found: list[str] = []
        for schedule_id in await self._members(self._keys.schedules()):
            data = await self._commands.hget(self._keys.schedule(schedule_id), "definition")
            try:
                stated = as_object(data or b"{}").get("session_id")
            except ValueError:
                continue
            # Braces that are doubled are meant as they are.
            if isinstance(stated, str) and _literal(stated) == session_id:
                found.append(schedule_id)
        return found

    async def _jobs(self, session_id: str) -> list[str]:
        return await self._members(self._keys.jobs_of(session_id))

    async def _members(self, index: str) -> list[str]:
        found: list[bytes] = await self._commands.zrange(index, 0, -1)
        return [topic_text(member) or "" for member in found]

    async def _length(self, key: str) -> int:
        """Count the rows of a log. Errors: CorruptState."""
        rows: int = await self._scripts.read(self._commands.xlen(key), key, command="XLEN")
        return rows

    async def _fields(self, key: str) -> list[bytes]:
        """Read a hash: its fields and values in turn. Errors: CorruptState."""
        reply = self._commands.hgetall(key)
        flat: list[bytes] = await self._scripts.read(reply, key, command="HGETALL")
        return flat

    async def _each(self, call: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Make a call for each value, some at once."""
        done: list[Any] = []
        for start in range(0, len(values), _TOGETHER):
            done += await asyncio.gather(*map(call, values[start : start + _TOGETHER]))
        return done


def _ignore(what: str, number: int) -> None:
    del what, number


def _literal(session_id: str) -> str | None:
    """Return the session of a schedule that has only one; None if it names the occurrence."""
    plain = session_id.replace("{{", "").replace("}}", "")
    if "{" in plain or "}" in plain:
        return None
    return session_id.replace("{{", "{").replace("}}", "}")
