"""Erase sessions and users: in Redis, in the store of claims and in the archive, with a report."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from redis_state.archive.identity import KnownArchive
from redis_state.archive.opening import open_archive
from redis_state.archive.protocol import Archive, complete, overlooked
from redis_state.archive.queries import ArchiveQuery
from redis_state.archive.retention import outliving
from redis_state.erasure.finding import Progress
from redis_state.erasure.key_owners import ALWAYS_KEPT, check_session, long_keys
from redis_state.erasure.reach import Reach
from redis_state.erasure.session import SessionErasure
from redis_state.erasure.traces import TraceErasure
from redis_state.erasure.user import UserErasure
from redis_state.erasure.walking import SessionFindings
from redis_state.errors import ErasureOutOfReach, InvalidField, SessionRunning
from redis_state.models import TaskStatus
from redis_state.models.attributes import AttributeValue, check_attributes
from redis_state.models.erasure import ErasureReport
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.traces.audit_events import GLOBAL_TRACE
from redis_state.transport.clock import us_of

log: logging.Logger = logging.getLogger(__name__)

# Archived tasks that are read at a time, with their journals; and what a moment of them is.
_PAGE = 50

OnRunning = Literal["refuse", "fence"]


@dataclass(frozen=True, slots=True)
class _Policy:
    dry_run: bool
    running: str
    actor: str | None
    leave_unset: bool = False

    def check(self) -> None:
        if self.running not in ("refuse", "fence"):
            raise InvalidField("running", "must be refuse or fence")


@dataclass(slots=True)
class _Together:
    """Sessions that are erased in one call, and which of their traces were looked at.

    ``shared`` are those that another session has too.
    """

    sessions: Sequence[str]
    events: TraceErasure
    traces: set[str] = field(default_factory=set[str])
    shared: set[str] = field(default_factory=set[str])
    done: list[str] = field(default_factory=list[str])
    # Of each session its traces, and the data files that are gone.
    of: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    missing: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@contextmanager
def _overlooking(missing: set[str]) -> Generator[None]:
    """Do without data files that are gone, and learn their names."""
    known = overlooked.set(missing)
    try:
        yield
    finally:
        overlooked.reset(known)


class Eraser:
    """Erase sessions and users of a store, and of its archive: by default that of its settings.

    It reads the names of all keys, and all tasks in Redis if a session has a trace. So a user of
    the server needs the role ``admin``. It works on one session at a time. ``progress`` is called
    with what is done, and how many.

    Errors of every call: BackendError, also CommandRefused without the right; ArchiveUnavailable;
    PayloadStoreUnavailable; LostRace while slots of a cluster are being moved. After any of them,
    and after a crash, repeat the call: it does the rest. ErasureOutOfReach, before anything is
    removed: Redis says that there is an archive, or durable events, without an address here. See
    `check_reach`.
    """

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._own = archive is None
        if archive is None and store.settings.has_archive:
            archive = open_archive(store.settings)
        self._archive = None if archive is None else complete(archive)
        self._sessions = SessionErasure(store, progress=progress)
        self._reach = Reach(store, has_archive=archive is not None)
        self._prepared = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect from an archive of its own."""
        if self._own and self._archive is not None:
            await self._archive.aclose()

    async def forget(
        self,
        session_id: str,
        *,
        dry_run: bool = False,
        running: OnRunning = "refuse",
        actor: str | None = None,
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase all that is kept of a session; return what there was of it.

        Not atomic: tasks first, then what names them. A run that still works is refused from the
        first step on; nothing of before the erasure is archived afterwards, by any process. Its id
        may be used again. First stop clients that submit into the session, and hosts that save into
        it without a lease.

        With ``running="refuse"`` running tasks raise SessionRunning, before anything is removed.
        With ``fence`` their runs lose their leases. `TaskClient.forget` cancels them. A dry run
        counts. ``actor`` is named in the log. With ``leave_unset`` an archive, or durable events,
        that this process has no address of are left, and named in ``kept``. Errors: SessionRunning;
        ErasureOutOfReach; InvalidField.
        """
        check_session(session_id)
        return await self._forget([session_id], _Policy(dry_run, running, actor, leave_unset))

    async def forget_user(
        self,
        user: AttributeValue,
        *,
        attribute: str = "user",
        shared: bool = False,
        dry_run: bool = False,
        running: OnRunning = "refuse",
        actor: str | None = None,
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase the sessions of a user, and what is kept under the user's name.

        A session is the user's if a task of it has the ``attribute``, in Redis or in the archive.
        So it is if a memory's key in Redis names both, or an artifact's scope in either. One of
        another user too is kept, unless ``shared``: `kept` says so. Under the user's name
        are: memories, OAuth tokens, durable streams that the user has created, and sessions and
        state of Google's ADK. Otherwise like `forget`.
        """
        users, chosen, mixed = await self._whose(user, attribute, shared=shared)
        policy = _Policy(dry_run, running, actor, leave_unset)
        report = await self._forget(chosen, policy)
        await users.erase(report, dry_run=dry_run)
        report.kept["sessions that name nobody"] = (
            "those without a task, a memory or an artifact that names the user: erase them by "
            "their ids"
        )
        if longer := outliving(self._store.settings):
            report.kept["what outlives its tasks"] = (
                f"archive_retention keeps {', '.join(longer)} for longer than the tasks that say "
                f"whose they are: erase such sessions by their ids"
            )
        if users.unnamed:
            report.kept["sessions with long ids"] = (
                f"{len(users.unnamed)} sessions have tasks of the user, and neither the index of "
                f"tasks nor the archive has their ids: erase them by these, or they expire"
            )
        if mixed and not shared:
            report.kept["shared sessions"] = (
                f"{len(mixed)} sessions are of other users too: "
                f"{', '.join(map(repr, sorted(mixed)[:10]))}"
            )
        return report

    async def sessions_of(
        self, user: AttributeValue, *, attribute: str = "user", shared: bool = False
    ) -> list[str]:
        """List the sessions that `forget_user` erases."""
        return (await self._whose(user, attribute, shared=shared))[1]

    async def _whose(
        self, user: AttributeValue, attribute: str, *, shared: bool
    ) -> tuple[UserErasure, list[str], set[str]]:
        check_attributes("user", {attribute: user})
        users = UserErasure(self._store, user, attribute)
        archive = await self._ready()
        sessions = await users.sessions(archive)
        mixed = await users.mixed(sessions)
        chosen = [each for each in sessions if shared or each not in mixed]
        for each in chosen:
            check_session(each)
        return users, chosen, mixed

    async def check_reach(
        self, sessions: Collection[str] = (), *, leave_unset: bool = False
    ) -> None:
        """Refuse to erase if Redis knows of an archive or durable events without an address here.

        So it does, also with ``leave_unset``, if the archive is not the one that Redis knows.
        Redis knows of them by archivers that work, by signs that last 400 days, by lists, and by
        archived records of the sessions. Nothing else says so once it has lost all of these. With
        ``leave_unset`` these are left. Another archive than Redis knows is refused, and nothing is
        made there. Errors: ErasureOutOfReach; OtherArchive; ArchiveUnavailable.
        """
        await self._compare()
        if not leave_unset and (beyond := await self._reach.beyond(sessions)):
            raise ErasureOutOfReach(list(beyond.values()))

    async def running(self, session_id: str) -> list[str]:
        """List the tasks of a session that run under a lease."""
        found: list[str] = []
        for task_id in await self._store.tasks.ids(session_id):
            view = await self._store.tasks.look(session_id, task_id)
            if view is not None and view.status is TaskStatus.RUNNING and view.left_ms:
                found.append(task_id)
        return found

    async def _forget(self, sessions: Sequence[str], policy: _Policy) -> ErasureReport:
        policy.check()
        total = ErasureReport(dry_run=policy.dry_run, kept=dict(ALWAYS_KEPT))
        await self._state_reach(sessions, policy, total)
        archive = await self._ready()
        if not sessions:
            return total
        if policy.running == "refuse" and not policy.dry_run:
            for session_id in sessions:
                if running := await self.running(session_id):
                    raise SessionRunning(session_id, len(running))
        findings = await self._sessions.find(sessions)
        unknown = self._sessions.unknown_memories
        if unknown:
            total.kept |= long_keys(unknown)
        together = _Together(sessions, TraceErasure(self._store, archive))
        for session_id in sessions:
            with _overlooking(together.missing[session_id]):
                together.of[session_id] = await together.events.of(findings[session_id])
        await together.events.look_at_tasks(set[str]().union(*together.of.values()))
        for session_id in sessions:
            missing = together.missing[session_id]
            with _overlooking(missing):
                one = await self._forget_one(findings[session_id], archive, policy, together)
            if missing:
                one.failed["archive"] = (
                    f"files that may have something of it are missing: "
                    f"{', '.join(sorted(missing))}; restore them, or run "
                    f"`redis-state archive drop-missing`, and repeat the call"
                )
            total.merge(one)
        if together.shared:
            total.kept["events of shared traces"] = (
                f"{len(together.shared)} traces belong to another session too"
            )
        return total

    async def _state_reach(
        self, sessions: Sequence[str], policy: _Policy, report: ErasureReport
    ) -> None:
        """State what is out of reach. Errors: ErasureOutOfReach, unless that is left or counted."""
        if not (policy.dry_run or policy.leave_unset):
            await self.check_reach(sessions)
            return
        beyond = await self._reach.beyond(sessions)
        (report.kept if policy.leave_unset else report.failed).update(beyond)

    async def _forget_one(
        self,
        found: SessionFindings,
        archive: Archive | None,
        policy: _Policy,
        together: _Together,
    ) -> ErasureReport:
        session_id, report = found.session_id, ErasureReport([found.session_id])
        await self._sessions.count(found, report, counted=together.traces)
        claims = await self._sessions.claims(found, await self._archived(session_id, archive))
        events, traces = together.events, together.of[session_id]
        # What only sessions have that are erased together goes with the last of them.
        shared = await events.shared(traces, together.sessions)
        archived = 0
        if policy.dry_run:
            report.claims = len(claims)
            was = None if archive is None else await archive.session(session_id)
            archived = await events.count(traces - shared - together.traces)
            report.durable_events = await events.count_durable(traces - shared - together.traces)
        else:
            keeps = await events.shared(traces, [*together.done, session_id])
            report.durable_events = await events.count_durable(traces - keeps)
            archived += await events.erase(traces - keeps)
            found = await self._sessions.erase(found, claims, report, traces=traces, keeps=keeps)
            archived += await events.erase(traces - keeps)
            was = None
            if archive is not None:
                # All that was read before has times of before.
                before_us = us_of(await self._store.transport.commands.time()) + 1
                was = await archive.forget(session_id, before_us=before_us)
            await self._sessions.forget_tasks(found)
            together.done.append(session_id)
        if was is not None:
            report.archive = {"tasks": was.tasks, "updates": was.updates} | {
                kind.what: count for kind, count in was.records.items()
            }
        if archived:
            report.archive["events"] = archived
        together.traces |= traces
        together.shared |= shared - {GLOBAL_TRACE}
        if not policy.dry_run:
            # Without the id, which is to be forgotten.
            log.info(
                "a session was erased: %s by %r; redis %d, archive %d, "
                "durable events %d, claims %d, failed %d",
                codec.fingerprint("erased session", session_id)[:16],
                policy.actor or "the application",
                sum(report.redis.values()),
                sum(report.archive.values()),
                report.durable_events,
                report.claims,
                len(report.failed),
            )
        return report

    async def _archived(self, session_id: str, archive: Archive | None) -> set[bytes]:
        """Return the names of the objects in the store of claims that archived tasks name."""
        settings = self._store.settings
        if archive is None or (
            settings.claim_check_url is None and settings.claim_check_store is None
        ):
            return set()
        payloads, named = self._store.base.payloads, set[bytes]()
        query = ArchiveQuery(session_id=session_id, limit=_PAGE)
        while tasks := await archive.tasks(query):
            for task in tasks:
                for value in (*task.record.values(), *task.journal.values()):
                    named |= payloads.claims_in(value)
            query = replace(query, after=tasks[-1].end)
        return named

    async def _compare(self) -> None:
        # Erased in another one it would not be erased.
        if self._archive is not None and not self._prepared:
            await KnownArchive(self._store, self._archive).check()

    async def _ready(self) -> Archive | None:
        await self._compare()
        if self._archive is not None and not self._prepared:
            await self._archive.prepare()
            self._prepared = True
        return self._archive
