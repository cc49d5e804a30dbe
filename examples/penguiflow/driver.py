"""Pause planners in one process, resume them in another, and check that nothing was lost."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from rich import box
from rich.markup import escape
from rich.table import Table

from examples.penguiflow.agents import PLAN, PUBLISHED
from redis_state.demo.pool import WorkerPool, on_server
from redis_state.errors import RedisStateError, TokenResolved
from redis_state.integrations.penguiflow import PenguiflowStateStore
from redis_state.integrations.penguiflow.state import TYPES
from redis_state.models import TaskStatus, UpdateType
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.worker import TaskClient

_SESSION = "plans"
_WORKER = "examples.penguiflow.agents:worker"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Which documents the planners outline, with which workers, on which server."""

    documents: Sequence[Path]
    output: Path
    workers: int = 3
    url: str | None = None
    limit_s: float = 170.0


@dataclass(slots=True)
class Plan:
    """One document's planner, as the store shows it."""

    task_id: str
    name: str
    path: Path
    status: str = "PENDING"
    ran_in: list[str] = field(default_factory=list[str])
    token: str = field(default="", repr=False)
    before: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    after: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    published: int = 0
    second_approval: str = "not made"

    @property
    def steps(self) -> list[str]:
        """The tools of the whole plan, in their order."""
        return [step["action"]["next_node"] for step in self.after]

    def problems(self) -> Iterator[str]:
        """Return what is not as it should be."""
        if self.status != "COMPLETE":
            yield f"ended as {self.status}"
        if self.steps != [*PLAN]:
            yield f"its trajectory is {self.steps}"
        if not self.before or self.after[: len(self.before) - 1] != self.before[:-1]:
            yield "what was before the pause is not what was there after it"
        if len(set(self.ran_in)) < 2:  # noqa: PLR2004
            yield f"ran in {self.ran_in} alone"
        if self.published != 1:
            yield f"published {self.published} times"
        if self.second_approval != "refused":
            yield f"its second approval was {self.second_approval}"


@dataclass(frozen=True, slots=True)
class Plans:
    """How the demo went. ``problems`` is empty if all went as it should."""

    plans: list[Plan]
    problems: list[str]
    output: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every planner resumed in another process, whole, and published once."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values. Tokens and trajectories are left out."""
        hidden = {"token", "before", "after", "task_id"}
        plans = [
            {name: value for name, value in asdict(plan).items() if name not in hidden}
            | {"path": str(plan.path), "steps": plan.steps}
            for plan in self.plans
        ]
        return {
            "ok": self.ok,
            "problems": self.problems,
            "seconds": round(self.seconds, 2),
            "plans": plans,
        }


async def run_plans(options: Options, say: Say) -> Plans:
    """Run a planner for each of the first documents; see `Plans` for how it went.

    Errors: ConfigError, BackendUnavailable.
    """

    async def run(url: str) -> Plans:
        namespace = f"demo-{secrets.token_hex(4)}"
        settings = Settings(url=SecretStr(url), namespace=namespace, queue_url=None)
        pool = WorkerPool(
            size=options.workers,
            url=url,
            namespace=namespace,
            queue=f"{namespace}:queue",
            logs=options.output / "workers",
            target=_WORKER,
        )
        async with (
            RedisStateStore(settings) as own,
            PenguiflowStateStore(settings, types=TYPES) as store,
            TaskClient(own, queue=f"{namespace}:queue") as client,
        ):
            await store.update_cursor(_SESSION)
            try:
                async with pool:
                    say(f"started {options.workers} workers: {', '.join(pool.names)}")
                    return await _Driver(options, store, client, pool, say).run()
            finally:
                with suppress(RedisStateError):
                    await client.drop_queue()
                    await store.delete_everything()

    return await on_server(options.url, say, run)


class _Driver:
    def __init__(
        self,
        options: Options,
        store: PenguiflowStateStore,
        client: TaskClient,
        pool: WorkerPool,
        say: Say,
    ) -> None:
        self._options = options
        self._store: Any = store
        self._client = client
        self._pool = pool
        self._say = say
        (options.output / PUBLISHED).unlink(missing_ok=True)
        self._plans = [
            Plan(task_id=f"plan-{number}", name=path.name, path=path)
            for number, path in enumerate(options.documents)
        ]

    async def run(self) -> Plans:
        started = time.perf_counter()
        problems: list[str] = []
        going = asyncio.ensure_future(self._go())
        dying = asyncio.ensure_future(self._pool.death())
        try:
            done, _ = await asyncio.wait(
                {going, dying},
                timeout=self._options.limit_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if going in done:
                going.result()
            else:
                late = f"not finished after {self._options.limit_s:g} s"
                problems.append(dying.result() if dying in done else late)
        finally:
            for each in (going, dying):
                each.cancel()
            await asyncio.gather(going, dying, return_exceptions=True)
        problems += [
            f"{plan.name}: {problem}" for plan in self._plans for problem in plan.problems()
        ]
        seconds = time.perf_counter() - started
        return Plans(self._plans, problems, self._options.output, seconds)

    async def _go(self) -> None:
        for plan in self._plans:
            request = {"path": str(plan.path), "output": str(self._options.output)}
            await self._client.submit(
                "outline_document",
                {"query": f"Publish an outline of {plan.name}", "tool_context": request},
                session_id=_SESSION,
                task_id=plan.task_id,
            )
        await self._until(TaskStatus.PAUSED)
        for plan in self._plans:
            await self._look(plan)
            plan.before = await self._trajectory(plan)
        # Whoever resumes cannot be who paused: those processes are gone.
        for name in sorted({plan.ran_in[-1] for plan in self._plans}):
            fresh = await self._pool.retire(name)
            self._say(f"retired worker {name}, which paused planners; started {fresh}")
        for plan in self._plans:
            await self._client.approve(plan.token, "yes", actor="driver")
            try:
                await self._client.approve(plan.token, "yes", actor="another caller")
                plan.second_approval = "accepted"
            except TokenResolved:
                plan.second_approval = "refused"
        await self._until(TaskStatus.COMPLETE)
        published = await asyncio.to_thread(_published, self._options.output / PUBLISHED)
        for plan in self._plans:
            await self._look(plan)
            plan.after = await self._trajectory(plan)
            plan.published = published[plan.task_id]

    async def _until(self, wanted: TaskStatus) -> None:
        """Wait until all are in a state, or have ended in another."""
        waiting = {plan.task_id: plan for plan in self._plans}
        while waiting:
            for task_id, plan in list(waiting.items()):
                state = await self._client.get(_SESSION, task_id)
                if state is not None and (state.status.value == wanted.value or _over(state)):
                    plan.status = state.status.value
                    self._say(f"{plan.name}: {plan.status}")
                    del waiting[task_id]
            await asyncio.sleep(0.05)

    async def _look(self, plan: Plan) -> None:
        plan.ran_in.clear()
        for update in await self._store.list_updates(_SESSION, task_id=plan.task_id):
            if update.update_type.value == UpdateType.CHECKPOINT.value:
                plan.token = update.content["pause_id"]
            elif update.content.get("status") == "RUNNING":
                plan.ran_in.append(update.content["worker"])

    async def _trajectory(self, plan: Plan) -> list[dict[str, Any]]:
        found = await self._store.get_trajectory(f"job-{plan.task_id}", _SESSION)
        steps: list[dict[str, Any]] = [] if found is None else found.serialise()["steps"]
        return steps


def plans_table(outcome: Plans) -> Table:
    """Draw how each planner went."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("document", no_wrap=True, max_width=14)
    for column in ("paused pid", "resumed pid", "trajectory", "published", "again"):
        table.add_column(column, no_wrap=True)
    for plan in outcome.plans:
        places = [name.rpartition(":")[2] for name in plan.ran_in] or [""]
        steps = " ".join(plan.steps)
        times = "once" if plan.published == 1 else f"{plan.published} times"
        cells = (plan.name, places[0], places[-1], steps, times, plan.second_approval)
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _published(log: Path) -> Counter[str]:
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return Counter(json.loads(line)["task"] for line in lines)


def _over(state: Any) -> bool:
    return state.status.value in {"COMPLETE", "FAILED", "CANCELLED"}
