"""The queue carries a task's name from the client to a worker, and nothing else.

The task's record is the truth. A lost, doubled or late job is harmless: one script decides by the
record whether a task starts. A sweeper puts a lost job again, when the record shows a waiting task.

Jobs are in arq's format (see `job_format`): its own runner takes them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis_state.primitives.listed import behind_a_write
from redis_state.scripts import QueuedJob
from redis_state.transport.key_groups import QueueKeys
from redis_state.worker.queue.backlog import Backlog, read_backlog
from redis_state.worker.queue.claims import QueueClaims
from redis_state.worker.queue.jobs.job import Job, QueueState, seniority_ms
from redis_state.worker.queue.jobs.job_format import payload_key, payload_of, picked_key


class Queue(QueueClaims):
    """The queues of a store's namespace. ``name`` is where a job goes that names none.

    Without ``queue_url`` the calls of queue and store share a connection, and their order.
    Errors: ConfigError for an address that no worker could share; InvalidField for an empty name.
    """

    async def put(self, job: Job) -> None:
        """Queue the run of a task that is written, where it belongs, once.

        Errors: OutcomeUnknown if it cannot be queued now: then a sweeper queues it.
        """
        name = job.queue or self.name
        with behind_a_write(self.transport.address):
            if not self.names.knows(name, at_ms=job.at_ms):
                await self.names.know(name, at_ms=job.at_ms)
            keys = self.keys(name)
            written = self._written(job, keys)
            await self._scripts.queue_job(keys, payload=payload_key(written.id), job=written)

    async def ensure_queued(
        self, jobs: Sequence[Job], *, patience_ms: int = 2_000
    ) -> list[QueueState]:
        """Ensure that the queue has these jobs, all of tasks that wait to be run.

        All of them travel together. Safe to repeat, also concurrently: a job is there once. What a
        worker claimed less than ``patience_ms`` ago is left alone: the worker may be about to start
        it. One that was merely slow then finds the task held, or starts it first. A permit stays
        until its claim is ``retired``, see `Job`. Errors: BackendUnavailable.
        """
        return [state for state, _ in await self.ensure_or_held(jobs, patience_ms=patience_ms)]

    async def ensure_or_held(
        self, jobs: Sequence[Job], *, patience_ms: int
    ) -> list[tuple[QueueState, int]]:
        """Do the same; for a job that is HELD also return when it was claimed, else 0."""
        found = await asyncio.gather(*(self._ensure(job, patience_ms) for job in jobs))
        return list(found)

    async def move(self, job: Job) -> None:
        """Move a job that is due to the place of its priority. See `place_by_record`.

        A repetition finds it there. Errors: BackendUnavailable.
        """
        name, earlier = self._ids(job)
        await self._scripts.move_job(
            self.keys(job.queue),
            payload=payload_key(name),
            earlier_payload=payload_key(earlier),
            id=name,
            earlier=earlier,
            earlier_ms=seniority_ms(job.priority),
            since_ms=job.since_ms,
        )

    async def defer(self, job: Job, *, sooner: bool) -> None:
        """Move a job that waits to another time: only sooner, or only later.

        One that is due, and waits for its key, is put off too. Errors: BackendUnavailable.
        """
        name = job.id_under(self._jobs_tag)
        await self._scripts.defer_job(
            self.keys(job.queue),
            payload=payload_key(name),
            id=name,
            at_ms=job.at_ms or 0,
            earlier_ms=seniority_ms(job.priority),
            sooner=sooner,
            life_ms=self._life_ms,
        )

    async def backlog(self, queue: str | None = None, *, ages: bool = True) -> Backlog:
        """Return what waits, what is claimed, and the limits. Errors: BackendUnavailable."""
        return await read_backlog(self._store, self._scripts, self.keys(queue), ages=ages)

    async def clear(self) -> None:
        """Forget everything queued. The tasks stay as they are: a sweeper queues what waits again.

        Errors: BackendUnavailable.
        """
        await self._scripts.clear_queue(self.keys(), history=self._keys.queue_history())

    async def _ensure(self, job: Job, patience_ms: int) -> tuple[QueueState, int]:
        await self.names.know(job.queue or self.name, at_ms=job.at_ms)
        keys = self.keys(job.queue)
        written = self._written(job, keys)
        _, earlier = self._ids(job)
        reply = await self._scripts.ensure_job(
            keys,
            payload=payload_key(written.id),
            picked=picked_key(written.id),
            earlier_payload=payload_key(earlier),
            job=written,
            earlier=earlier,
            orphan=job.orphan,
            version=str(job.version),
            patience_ms=patience_ms,
            retired=job.retired_ms,
        )
        state = QueueState(reply.text(0))
        return state, int(reply.facts[1]) if state is QueueState.HELD else 0

    def _ids(self, job: Job) -> tuple[str, str]:
        """Return a job's id, and that of the run before."""
        tag = self._jobs_tag
        return job.id_under(tag), job._replace(runs=max(0, job.runs - 1)).id_under(tag)

    def _written(self, job: Job, keys: QueueKeys) -> QueuedJob:
        return QueuedJob(
            channel=keys.channel,
            id=job.id_under(self._jobs_tag),
            payload=payload_of(job.stated()),
            life_ms=self._life_ms,
            earlier_ms=seniority_ms(job.priority),
            since_ms=job.since_ms,
            at_ms=job.at_ms,
            key=job.key,
        )
