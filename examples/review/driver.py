"""The driver: submit, follow, steer and decide; then compare what was seen with what is stored."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import SecretStr

from examples.review.outcome import (
    INFORMATION,
    Outcome,
    Review,
    Role,
    assign_roles,
    takeover_problems,
)
from examples.review.tasks import ReviewJob
from redis_state.demo.flow import KEY, KIND, Flow
from redis_state.demo.pool import WorkerPool, on_server
from redis_state.errors import ConfigError, RedisStateError
from redis_state.models import SteeringEventType, UpdateType
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.worker import TaskClient

T = TypeVar("T")

_SESSION = "review"
_LIMIT = 6
_LIMIT_S = 170.0
# The killed worker must be in the middle of a review.
_CHAOS_PACE_S = 0.2


class View(Protocol):
    """What shows the run to a person."""

    def show(self, review: Review) -> None:
        """Show where a task stands."""

    def say(self, text: str) -> None:
        """Show a line that concerns no single task."""

    async def ask(self, review: Review) -> bool:
        """Ask a person to decide."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What is reviewed, and how."""

    documents: Sequence[Path]
    root: Path
    output: Path
    workers: int = 3
    ask: bool = False
    pace_s: float = 0.0
    url: str | None = None
    limit_s: float = _LIMIT_S
    chaos: bool = False


async def run_demo(options: Options, view: View) -> Outcome:
    """Review the documents with a pool of worker processes; see `Outcome` for how it went.

    Starts a server of its own unless given a URL, and stops everything it started. Errors:
    ConfigError, BackendUnavailable. SIGTERM cancels it, as Ctrl-C does.
    """
    if options.workers < 2:  # noqa: PLR2004
        raise ConfigError("the demo needs at least 2 workers: one pauses, another resumes")

    async def run(url: str) -> Outcome:
        return await _run(options, url, view)

    return await on_server(options.url, view.say, run)


async def _run(options: Options, url: str, view: View) -> Outcome:
    namespace = f"demo-{secrets.token_hex(4)}"
    queue = f"{namespace}:queue"
    settings = Settings(url=SecretStr(url), namespace=namespace, queue_url=None)
    pool = WorkerPool(
        size=options.workers,
        url=url,
        namespace=namespace,
        queue=queue,
        logs=options.output / "workers",
        target=f"examples.review.tasks:{'mortal' if options.chaos else 'worker'}",
    )
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=queue) as client,
    ):
        # An unreachable server is reported before anything is started on it.
        await store.update_cursor(_SESSION)
        try:
            async with pool:
                view.say(f"started {options.workers} workers: {', '.join(pool.names)}")
                return await ReviewDriver(options, store, client, pool, view).run()
        finally:
            with suppress(RedisStateError):
                await Flow(client, queue, limit=_LIMIT).tidy()
                await _tidy(store, client)


async def _tidy(store: RedisStateStore, client: TaskClient) -> None:
    """Leave nothing on a server that others use: the tasks, the queue, the watch list."""
    for task in await store.list_tasks(_SESSION):
        await client.cancel(_SESSION, task.task_id)
    await client.drop_queue()
    await store.clear_session(_SESSION)


class ReviewDriver:
    """One run: submits, follows, steers and decides."""

    def __init__(
        self,
        options: Options,
        store: RedisStateStore,
        client: TaskClient,
        pool: WorkerPool,
        view: View,
    ) -> None:
        self._options = options
        self._store = store
        self._client = client
        self._pool = pool
        self._view = view
        self._reviews = {
            review.task_id: review for review in assign_roles(list(options.documents), options.root)
        }
        self._flow = Flow(client, pool.queue, limit=_LIMIT)
        self._seen: list[str] = []
        self._actions: set[asyncio.Task[None]] = set()
        # Set once a task was steered. A decision before that could end the task unsteered.
        self._steered = {task_id: asyncio.Event() for task_id in self._reviews}
        self._problems: list[str] = []
        self._trouble: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._retired: str | None = None
        self._killed = ""
        self._asking = asyncio.Lock()

    async def run(self) -> Outcome:
        """Submit all, follow until all have ended, and compare."""
        started = time.perf_counter()
        await self._flow.begin()
        for review in self._reviews.values():
            await self._submit(review)
        following: asyncio.Future[Any] = asyncio.create_task(self._follow())
        dying: asyncio.Future[Any] = asyncio.create_task(self._pool.death())
        limit_s = None if self._options.ask else self._options.limit_s
        try:
            done, _ = await asyncio.wait(
                {following, dying, self._trouble},
                timeout=limit_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            died = following not in done and dying in done
            if following in done:
                following.result()
            elif died:
                self._problems.append(dying.result())
            elif not done:
                unfinished = [review.name for review in self._reviews.values() if not review.ended]
                self._problems.append(f"not finished after {limit_s:g} s: {', '.join(unfinished)}")
        finally:
            self._trouble.cancel()
            tasks: set[asyncio.Future[Any]] = {following, dying, *self._actions}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return await self._conclude(time.perf_counter() - started, died=died)

    async def _submit(self, review: Review) -> None:
        job = ReviewJob(
            path=str(review.path),
            documents=[str(other.path) for other in self._reviews.values()],
            root=str(self._options.root),
            output=str(self._options.output),
            name=review.name,
            pace_s=max(self._options.pace_s, _CHAOS_PACE_S if self._options.chaos else 0.0),
        )
        await self._client.submit(
            "review_document",
            job.to_dict(),
            session_id=_SESSION,
            task_id=review.task_id,
            description=f"review {review.name}",
            limit_key=KEY,
            attributes=KIND,
        )

    async def _follow(self) -> None:
        updates = self._store.watch_updates(_SESSION)
        async with aclosing(updates):
            async for entry in updates:
                update = entry.value
                self._seen.append(update.update_id)
                review = self._reviews[update.task_id]
                first_progress = not review.started and update.update_type is UpdateType.PROGRESS
                review.observe(update)
                if update.update_type is UpdateType.STATUS_CHANGE:
                    self._flow.observe(review.task_id, review.status)
                self._view.show(review)
                if first_progress:
                    review.started = True
                    self._act(self._steer(review))
                if self._options.chaos and not self._killed and review.done > 1 and review.worker:
                    self._killed = review.worker
                    self._act(self._kill(review))
                if (
                    update.update_type is UpdateType.CHECKPOINT
                    and review.role is not Role.CANCELLED
                ):
                    self._act(self._decide(review))
                if all(review.ended for review in self._reviews.values()):
                    return

    def _act(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guard(action))
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)

    async def _guard(self, action: Coroutine[Any, Any, None]) -> None:
        try:
            await action
        except Exception as error:  # noqa: BLE001 - any failure is reported in the outcome
            self._problems.append(f"{type(error).__name__}: {error}")
            if not self._trouble.done():
                self._trouble.set_result(None)

    async def _steer(self, review: Review) -> None:
        await self._steer_by_role(review)
        self._steered[review.task_id].set()

    async def _steer_by_role(self, review: Review) -> None:
        match review.role:
            case Role.INFORMED:
                self._view.say(f"steering {review.name}: INJECT_CONTEXT")
                await self._client.steer(
                    _SESSION,
                    review.task_id,
                    SteeringEventType.INJECT_CONTEXT,
                    {"text": INFORMATION},
                )
            case Role.REDIRECTED:
                self._view.say(f"steering {review.name}: REDIRECT to strict links")
                await self._client.steer(
                    _SESSION,
                    review.task_id,
                    SteeringEventType.REDIRECT,
                    {
                        "instruction": "check links strictly",
                        "constraints": {"link_policy": "strict"},
                    },
                )
            case Role.CANCELLED:
                self._view.say(f"cancelling {review.name}")
                await self._client.cancel(_SESSION, review.task_id, reason="not this one")
            case Role.PLAIN:
                pass

    async def _kill(self, review: Review) -> None:
        self._view.say(f"killing worker {self._killed} (-9) while it reviews {review.name}")
        fresh = await self._pool.kill(self._killed)
        self._view.say(f"started worker {fresh} in its place")

    async def _decide(self, review: Review) -> None:
        async with self._asking:
            if self._retired is None:
                # The worker that paused it is gone, so another one must resume it.
                self._retired = review.task_id
                gone = review.paused_by
                self._view.say(f"{review.name} is paused: retiring worker {gone}, which paused it")
                fresh = await self._pool.retire(gone)
                self._view.say(f"started worker {fresh} in its place")
            decision = await self._view.ask(review) if self._options.ask else True
            review.decision = decision
        await self._steered[review.task_id].wait()
        if decision:
            await self._client.approve(review.token, actor="driver")
        else:
            await self._client.reject(review.token, actor="driver")

    async def _conclude(self, seconds: float, *, died: bool) -> Outcome:
        written: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._store.read_updates(_SESSION, after=cursor)
            written += [update.update_id for update in page.values]
            cursor = page.cursor
            if page.at_end:
                break
        if self._seen != written[: len(self._seen)] or len(self._seen) != len(written):
            self._problems.append(
                f"saw {len(self._seen)} updates ({len(set(self._seen))} different), "
                f"{len(written)} were written"
            )
        reviews = list(self._reviews.values())
        for review in reviews:
            task = await self._client.get(_SESSION, review.task_id)
            review.result = task.result if task else None
        self._problems += [
            f"{review.name}: {problem}" for review in reviews if (problem := review.problem())
        ]
        moved = [
            review.name
            for review in reviews
            if review.resumed_by and review.resumed_by != review.paused_by
        ]
        if not moved and any(review.decision is not None for review in reviews):
            self._problems.append("no task was resumed by another process than paused it")
        if self._options.chaos:
            self._problems += takeover_problems(reviews, self._killed)
        if died:
            # What the dead worker held would be waited for until its lease has run out.
            flow = self._flow.broken_off()
        else:
            flow, wrong = await self._flow.finish({each.task_id: each.status for each in reviews})
            self._problems += wrong
        return Outcome(
            reviews=reviews,
            updates_written=len(written),
            updates_seen=len(self._seen),
            moved=moved,
            problems=self._problems,
            output=self._options.output,
            flow=flow,
            seconds=seconds,
            killed=self._killed,
        )
