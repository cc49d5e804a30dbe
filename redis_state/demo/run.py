"""The demo's driver: submit, watch, steer, cancel and approve; then compare with what is stored."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state.demo.agents import TOTAL
from redis_state.demo.flow import KEY, KIND, Flow, FlowFacts
from redis_state.demo.pool import WorkerPool, on_server
from redis_state.errors import RedisStateError
from redis_state.models import StateUpdate, SteeringEventType, UpdateType
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.worker import TaskClient

NOTE = "Please pack it as a gift."
ORDERS = ("order-1", "order-2", "order-3", "order-4")
STEERED, CANCELLED = ORDERS[:2]

_SESSION = "orders"
# Of four orders: one waits until another one pauses.
_LIMIT = 3
_LIMIT_S = 120.0
# The killed worker must be in the middle of an order.
_CHAOS_PACE_S = 0.4
_OVER = {"COMPLETE", "FAILED", "CANCELLED"}

Say = Callable[[str], None]


@dataclass(slots=True)
class Agent:
    """One order's task, as its updates show it."""

    name: str
    status: str = "PENDING"
    worker: str = ""
    paused_by: str = ""
    resumed_by: str = ""
    killed: str = ""
    taken_over_by: str = ""
    updates: int = 0
    result: Any = None

    def observe(self, update: StateUpdate) -> None:
        """Apply one update."""
        self.updates += 1
        content: dict[str, Any] = update.content
        if update.update_type is UpdateType.CHECKPOINT:
            self.paused_by = self.worker
        if update.update_type is not UpdateType.STATUS_CHANGE:
            return
        before, self.status = self.status, str(content["status"])
        if self.status == "RUNNING":
            worker = str(content.get("worker", ""))
            if before == "RUNNING":
                # No worker gave the task back in between: the one before is dead.
                self.killed, self.taken_over_by = self.worker, worker
            if self.paused_by and not self.resumed_by:
                self.resumed_by = worker
            self.worker = worker

    def problems(self) -> Iterator[str]:
        """Return what differs from what the driver caused."""
        wanted = "CANCELLED" if self.name == CANCELLED else "COMPLETE"
        if self.status != wanted:
            yield f"{self.name} ended as {self.status}, not {wanted}"
        elif wanted == "COMPLETE":
            notes = [NOTE] if self.name == STEERED else []
            expected = {"total": TOTAL, "approved": True, "notes": notes}
            if self.result != expected:
                yield f"{self.name} returned {self.result}, not {expected}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended. ``problems`` is empty if every claim of the demo holds."""

    agents: list[Agent]
    updates_written: int
    updates_seen: int
    retired: str
    killed: str
    seconds: float
    flow: FlowFacts
    problems: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether every agent ended as it should and every update was seen exactly once."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {"ok": self.ok, **asdict(self)}


async def run_demo(
    *, url: str | None, workers: int, chaos: bool, pace_s: float, say: Say
) -> Outcome:
    """Run four agents in some worker processes; see `Outcome` for how it went.

    Starts a server of its own unless given a URL, and stops what it started. SIGTERM cancels it, as
    Ctrl-C does. Errors: ConfigError, NoConnection.
    """

    async def on(address: str) -> Outcome:
        namespace = f"demo-{secrets.token_hex(4)}"
        settings = Settings(url=SecretStr(address), namespace=namespace, queue_url=None)
        with tempfile.TemporaryDirectory(prefix="redis-state-demo-") as logs:
            pool = WorkerPool(
                size=workers,
                url=address,
                namespace=namespace,
                queue=f"{namespace}:queue",
                logs=Path(logs),
                target=f"redis_state.demo.agents:{'mortal' if chaos else 'worker'}",
            )
            async with (
                RedisStateStore(settings) as store,
                TaskClient(store, queue=f"{namespace}:queue") as client,
            ):
                # An unreachable server is reported before anything is started on it.
                await store.update_cursor(_SESSION)
                driver = _Driver(store, client, pool, say, chaos=chaos)
                try:
                    async with pool:
                        say(f"started {workers} workers: {', '.join(pool.names)}")
                        return await driver.run(max(pace_s, _CHAOS_PACE_S if chaos else 0.0))
                finally:
                    with suppress(RedisStateError):
                        await driver.tidy()

    return await on_server(url, say, on)


class _Driver:
    """One run of the demo. Whatever it does to an agent, it does on seeing an update."""

    def __init__(
        self, store: RedisStateStore, client: TaskClient, pool: WorkerPool, say: Say, *, chaos: bool
    ) -> None:
        self._store = store
        self._client = client
        self._pool = pool
        self._say = say
        self._chaos = chaos
        self._agents = {name: Agent(name) for name in ORDERS}
        self._flow = Flow(client, pool.queue, limit=_LIMIT)
        self._seen: list[str] = []
        self._started: set[str] = set()
        self._retired = self._killed = ""

    async def run(self, pace_s: float) -> Outcome:
        """Submit all orders, watch until all have ended, and compare."""
        start = time.perf_counter()
        await self._flow.begin()
        for name in ORDERS:
            await self._client.submit(
                "prepare_order",
                {"pace_s": pace_s},
                session_id=_SESSION,
                task_id=name,
                limit_key=KEY,
                attributes=KIND,
            )
        problems: list[str] = []
        watching = asyncio.ensure_future(self._watch())
        dying = asyncio.ensure_future(self._pool.death())
        try:
            done, _ = await asyncio.wait(
                {watching, dying}, timeout=_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            died = watching not in done and dying in done
            if watching in done:
                watching.result()
            else:
                late = f"not finished after {_LIMIT_S:g} s"
                problems.append(dying.result() if died else late)
        finally:
            for task in (watching, dying):
                task.cancel()
            await asyncio.gather(watching, dying, return_exceptions=True)
        written = await self._written()
        problems += update_problems(self._seen, written)
        agents = list(self._agents.values())
        for agent in agents:
            state = await self._client.get(_SESSION, agent.name)
            agent.result = state.result if state else None
            problems += agent.problems()
        problems += worker_problems(agents, self._retired, self._killed, chaos=self._chaos)
        if died:
            # What the dead worker held would be waited for until its lease has run out.
            flow = self._flow.broken_off()
        else:
            flow, wrong = await self._flow.finish({agent.name: agent.status for agent in agents})
            problems += wrong
        seconds = round(time.perf_counter() - start, 2)
        counts = len(written), len(self._seen)
        return Outcome(agents, *counts, self._retired, self._killed, seconds, flow, problems)

    async def tidy(self) -> None:
        """Leave nothing on a server that others use."""
        for name in ORDERS:
            if await self._client.get(_SESSION, name) is not None:
                await self._client.cancel(_SESSION, name)
        await self._flow.tidy()
        await self._client.drop_queue()
        await self._store.clear_session(_SESSION)

    async def _watch(self) -> None:
        async with aclosing(self._store.watch_updates(_SESSION)) as updates:
            async for entry in updates:
                update = entry.value
                agent = self._agents[update.task_id]
                self._seen.append(update.update_id)
                agent.observe(update)
                if update.update_type is UpdateType.STATUS_CHANGE:
                    self._flow.observe(agent.name, agent.status)
                await self._act(agent, update)
                if all(each.status in _OVER for each in self._agents.values()):
                    return

    async def _act(self, agent: Agent, update: StateUpdate) -> None:
        content: dict[str, Any] = update.content
        match update.update_type:
            case UpdateType.STATUS_CHANGE:
                actor = f" @ {agent.worker}" if agent.status == "RUNNING" else ""
                self._say(f"{agent.name}: {agent.status}{actor}")
            case UpdateType.PROGRESS if agent.name not in self._started:
                self._started.add(agent.name)
                await self._steer(agent)
            case UpdateType.PROGRESS if agent.name != CANCELLED:
                await self._kill(agent)
            case UpdateType.CHECKPOINT if agent.name != CANCELLED:
                await self._approve(agent, str(content["pause_id"]))
            case _:
                pass

    async def _steer(self, agent: Agent) -> None:
        if agent.name == STEERED:
            self._say(f"steering {agent.name}: {NOTE}")
            kind = SteeringEventType.INJECT_CONTEXT
            await self._client.steer(_SESSION, agent.name, kind, {"text": NOTE})
        elif agent.name == CANCELLED:
            self._say(f"cancelling {agent.name}")
            await self._client.cancel(_SESSION, agent.name, reason="not this one")

    async def _kill(self, agent: Agent) -> None:
        if self._chaos and not self._killed:
            self._killed = agent.worker
            self._say(f"killing worker {agent.worker} (-9) while it prepares {agent.name}")
            self._say(f"started worker {await self._pool.kill(agent.worker)} in its place")

    async def _approve(self, agent: Agent, token: str) -> None:
        if not self._retired and agent.paused_by in self._pool.names:
            # The worker that paused it is gone, so another one must resume it.
            self._retired = agent.paused_by
            self._say(f"{agent.name} is paused: retiring worker {self._retired}, which paused it")
            self._say(f"started worker {await self._pool.retire(self._retired)} in its place")
        await self._client.approve(token, actor="the demo")

    async def _written(self) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._store.read_updates(_SESSION, after=cursor)
            found += [update.update_id for update in page.values]
            cursor = page.cursor
            if page.at_end:
                return found


def update_problems(seen: Sequence[str], written: Sequence[str]) -> Iterator[str]:
    """Return in which way the updates seen are not those written, each once and in order."""
    if list(seen) != list(written):
        different = len(set(seen))
        yield f"saw {len(seen)} updates ({different} different), {len(written)} were written"


def worker_problems(
    agents: Sequence[Agent], retired: str, killed: str, *, chaos: bool
) -> Iterator[str]:
    """Return what is wrong if no other worker resumed, or took over, what it should."""
    moved = [agent for agent in agents if agent.resumed_by and agent.paused_by == retired]
    if not moved or any(agent.resumed_by == retired for agent in moved):
        yield "no agent was resumed by another process than paused it"
    taken = [agent for agent in agents if killed and agent.killed == killed]
    if chaos and not any(agent.taken_over_by != killed for agent in taken):
        yield "no agent was taken over from the worker that was killed"
