"""Queues of jobs: put, claim, end, look after, all in one slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from redis_state.scripts.binding import of_new_keys, script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.key_groups import QueueKeys
from redis_state.transport.wire.resp import Argument


class QueuedJob(NamedTuple):
    """A job as a queue's scripts take it."""

    channel: str
    id: str
    payload: bytes
    life_ms: int
    earlier_ms: int
    since_ms: int | None
    at_ms: int | None
    key: str


class EndedJob(NamedTuple):
    """A job that was claimed and is done; in ``again_ms`` it is due again, unless that is None.

    One of a key that is due at once goes where it was, to its ``place``. One that has not ``begun``
    gives back what it took of its key's rate.
    """

    payload: str
    id: bytes
    claimed: bytes
    again_ms: int | None
    place: bytes = b""
    begun: bool = True


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """Jobs of one queue that are done."""

    each: Sequence[EndedJob]

    @property
    def payloads(self) -> list[str]:
        """Return the keys of their payloads."""
        return [job.payload for job in self.each]

    @property
    def jobs(self) -> list[Argument]:
        """Return their ids, claims, in how many ms they are due again, places, and beginnings."""
        written: list[Argument] = []
        for job in self.each:
            again: Argument = b"" if job.again_ms is None else job.again_ms
            written += (job.id, job.claimed, again, job.place, int(job.begun))
        return written


def _inspected(tasks: Sequence[tuple[str, int | None, int | None]]) -> list[Argument]:
    tail: list[Argument] = []
    for task, *facts in tasks:
        tail += (task, *("" if fact is None else fact for fact in facts))
    return tail


class QueueScripts(ScriptRunner):
    """Queues of jobs: put, claim, end, look after."""

    @of_new_keys
    def queue_job(self, keys: QueueKeys, *, payload: str, job: QueuedJob) -> PendingReply:
        """OK new."""

    @script
    def claim_jobs(self, keys: QueueKeys, *, limit: int, life_ms: int) -> PendingReply:
        """OK now limited parked, then id, place and claimed, in turn."""

    @script
    def claim_parked(
        self, keys: QueueKeys, *, limit: int, life_ms: int, lanes: Sequence[str]
    ) -> PendingReply:
        """OK now parked more, then id, place and claimed, in turn."""

    @script
    def park_job(
        self,
        keys: QueueKeys,
        *,
        payload: str,
        id: bytes,  # noqa: A002
        claimed: bytes,
        place: bytes,
        lane: str,
        version: int,
        life_ms: int,
    ) -> PendingReply:
        """OK parked."""

    @script
    def look_parked(self, keyed: str, *, lanes: int, limit: int) -> PendingReply:
        """OK, then lane, count and members, in turn."""

    @script
    def end_jobs(self, keys: QueueKeys, ended: EndedJobs, *, life_ms: int) -> PendingReply:
        """OK ended."""

    @script
    def ensure_job(
        self,
        keys: QueueKeys,
        *,
        payload: str,
        picked: str,
        earlier_payload: str,
        job: QueuedJob,
        earlier: str,
        orphan: bool,
        version: str,
        patience_ms: int,
        retired: int = 0,
    ) -> PendingReply:
        """OK state: WAITS, MISPLACED, CLAIMED, RELEASED, QUEUED or HELD."""

    @script
    def list_claims(
        self, claims: str, *, after: int, ahead: int = 0, patience_ms: int, limit: int
    ) -> PendingReply:
        """OK now, then task and claimed, in turn."""

    @script
    def move_job(
        self,
        keys: QueueKeys,
        *,
        payload: str,
        earlier_payload: str,
        id: str,  # noqa: A002
        earlier: str,
        earlier_ms: int,
        since_ms: int | None,
    ) -> PendingReply:
        """OK moved."""

    @script
    def withdraw_jobs(self, keys: QueueKeys, *, line: str, jobs: Sequence[str]) -> PendingReply:
        """OK removed."""

    @script
    def clear_queue(self, keys: QueueKeys, *, history: str) -> PendingReply:
        """OK deleted."""

    @script
    def know_history(self, history: str, *, id: str, picking: bool) -> PendingReply:  # noqa: A002
        """OK history picking."""

    @script
    def know_queue(
        self, names: str, *, queue: bytes, life_ms: int, at_ms: int | None
    ) -> PendingReply:
        """OK."""

    @script
    def defer_job(
        self,
        keys: QueueKeys,
        *,
        payload: str,
        id: str,  # noqa: A002
        at_ms: int,
        earlier_ms: int,
        sooner: bool,
        life_ms: int,
    ) -> PendingReply:
        """OK moved."""

    @script
    def look_queue(self, keys: QueueKeys, *, most: int, most_keys: int) -> PendingReply:
        """OK now waiting later claimed settings, and the first jobs with their places."""

    @script
    def look_keys(self, list: str, keys: QueueKeys, *, after: bytes, most: int) -> PendingReply:  # noqa: A002
        """OK now last, then key, waiting, running, id and place, in turn."""

    @script
    def drop_claims(
        self,
        keys: QueueKeys,
        *,
        before_ms: int,
        tasks: Annotated[Sequence[tuple[str, int | None, int | None]], _inspected],
    ) -> PendingReply:
        """OK ended."""

    @script
    def set_flow(self, keys: QueueKeys, settings: Mapping[str, bytes]) -> PendingReply:
        """OK settings."""

    @script
    def take_rate(
        self, rates: str, *, settings: str, name: str, rate: str, cost: int, under: str = ""
    ) -> PendingReply:
        """OK wait_ms, rate."""

    @script
    def set_rate(self, settings: str, *, name: str, rate: str) -> PendingReply:
        """OK."""
