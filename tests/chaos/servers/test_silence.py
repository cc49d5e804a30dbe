"""How long one call is held when a primary of a cluster is killed under load.

Every single call is timed, from the moment it is made to its outcome. A submit makes two or three,
one after the other. The nodes need a part of that time to replace the primary: it is measured too.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings, TaskClient
from redis_state.testing import eventually
from redis_state.transport.sending.batch import Call
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import queue_of
from tests.support.samples import update as make_update
from tests.support.servers.sets.clusters import NODE_TIMEOUT_MS, Cluster, running_cluster

# Longer than any failover: whoever gets an error got one too early.
_CALL_S = 30.0
_WRITERS, _SUBMITTERS = 24, 4
_WRITE_EVERY_S, _SUBMIT_EVERY_S = 0.02, 0.05
# What the nodes may take beyond their timeout, and a client beyond the nodes.
_FAILOVER_S = 2.0
_CLIENT_S = 1.0


@dataclass
class _Timed:
    """The calls of a store: when each was made and when it ended."""

    calls: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    open: set[Call] = field(default_factory=set[Call])

    def watch(self, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time each call that the store makes from now on."""
        sender: Any = store.transport.sender
        put: Callable[..., Call] = sender._put

        def timed(*of_call: Any) -> Call:
            began, call = time.monotonic(), put(*of_call)
            self.open.add(call)

            def ended(_: object) -> None:
                self.open.discard(call)
                self.calls.append((began, time.monotonic()))

            call.add_late_callback(ended)
            return call

        monkeypatch.setattr(sender, "_put", timed)

    def held(self, since: float, until: float) -> list[tuple[float, float]]:
        """List the calls that were open at any time between."""
        return [call for call in self.calls if call[0] < until and call[1] > since]


@dataclass
class _Callers:
    """Writers of a session each, and those who submit tasks. Each remembers what has a reply."""

    trial: Trial
    client: TaskClient
    name: str
    rows: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    tasks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    over: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Make calls for the length of the block. An error of a caller is a problem."""
        calling = [
            *(self._write(f"{self.name}-rows{number}") for number in range(_WRITERS)),
            *(self._submit(f"{self.name}-tasks{number}") for number in range(_SUBMITTERS)),
        ]
        running = [asyncio.create_task(each) for each in calling]
        try:
            yield
            self.over = True
            for error in await asyncio.gather(*running, return_exceptions=True):
                self.trial.expect(error is None, f"a caller ended: {error!r}")
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def _write(self, session: str) -> None:
        done = self.rows.setdefault(session, [])
        while not self.over:
            row = f"{session}-{len(done)}"
            with self.trial.history.doing("append"):
                await self.client.store.save_update(make_update(row, session_id=session))
                done.append(row)
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _submit(self, session: str) -> None:
        done = self.tasks.setdefault(session, [])
        while not self.over:
            task = f"{len(done):06}"
            with self.trial.history.doing("submit"):
                await self.client.submit("work", session_id=session, task_id=task)
                done.append(task)
            await asyncio.sleep(_SUBMIT_EVERY_S)

    def count(self) -> dict[str, int]:
        """Count what each caller has done."""
        return {each: len(done) for each, done in (self.rows | self.tasks).items()}

    async def all_go_on(self) -> None:
        """Wait until every caller has done more."""
        before = self.count()
        await eventually(
            lambda: all(self.count()[each] > done for each, done in before.items()),
            "every caller goes on",
            timeout_s=60,
        )

    async def judge(self) -> tuple[int, int]:
        """Return how much of what has a reply is missing, and how much is there twice."""
        missing = twice = 0
        for session, written in self.rows.items():
            stored = await self.client.store.list_updates(session, limit=1_000_000)
            kept = [each.update_id for each in stored]
            missing += len(set(written) - set(kept))
            twice += len(kept) - len(set(kept))
            among = [each for each in kept if each in set(written)]
            self.trial.expect(among == sorted(among, key=written.index), f"{session}: order")
        for session, submitted in self.tasks.items():
            kept = [each.task_id for each in await self.client.store.list_tasks(session)]
            missing += len(set(submitted) - set(kept))
            twice += len(kept) - len(set(kept))
        return missing, twice


@asynccontextmanager
async def _calling(
    trial: Trial, cluster: Cluster, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[_Callers, _Timed]]:
    settings = Settings(
        url=SecretStr(cluster.url),
        namespace=guarantee,
        call_timeout_s=_CALL_S,
        guarantee=guarantee,
        max_updates_per_session=0,
    )
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=queue_of(settings)) as client,
    ):
        callers, timed = _Callers(trial, client, guarantee), _Timed()
        timed.watch(store, monkeypatch)
        async with callers.running():
            await eventually(
                lambda: len(callers.count()) == _WRITERS + _SUBMITTERS, "all have begun"
            )
            await callers.all_go_on()
            yield callers, timed
        missing, twice = await callers.judge()
        trial.duplicated += twice
        if guarantee == "replicated":
            trial.lost += missing
        else:
            trial.figures["lost_before_its_replica_had_it"] = missing


async def test_a_primary_of_a_cluster_is_killed(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = trial.size.of(20, least=2)
    trial.parameters = {"kills": kills, "node_timeout_s": NODE_TIMEOUT_MS / 1000}
    calls, noticed, nodes, client = (list[float]() for _ in range(4))
    async with running_cluster(replicas=1) as cluster:
        for guarantee in ("fast", "replicated"):
            async with _calling(trial, cluster, guarantee, monkeypatch) as (callers, timed):
                for number in range(kills // 2 if guarantee == "replicated" else -(-kills // 2)):
                    primaries = await cluster.primaries()
                    lost = primaries[number % len(primaries)]
                    killed = time.monotonic()
                    cluster.kill(lost)
                    await cluster.given_up(lost)
                    noticed.append(time.monotonic() - killed)
                    await cluster.failed_over(lost)
                    replaced = time.monotonic()
                    trial.faults += cluster.status(lost) == -signal.SIGKILL
                    if guarantee == "replicated":
                        # Its new primary has no replica until then: nothing is confirmed.
                        cluster.start_node(lost)
                    await callers.all_go_on()
                    held = timed.held(killed, replaced)
                    if guarantee == "fast":
                        calls.append(max(end - begin for begin, end in held))
                        nodes.append(replaced - killed)
                        client.append(max(end for _, end in held) - replaced)
                        cluster.start_node(lost)
                    await cluster.settled()
                    await callers.all_go_on()
    trial.figures |= {
        "longest_call_s": round(max(calls), 2),
        "median_longest_call_s": round(sorted(calls)[len(calls) // 2], 2),
        "nodes_noticed_s": round(max(noticed), 2),
        "nodes_took_s": round(max(nodes), 2),
        "longest_after_the_nodes_s": round(max(client), 2),
        "bar_s": NODE_TIMEOUT_MS / 1000 + _FAILOVER_S,
    }
    late = max(client)
    trial.expect(late <= _CLIENT_S * trial.size.tolerance, f"a call was held {late:.2f} s longer")
    trial.expect(max(calls) > 0.5, "no call was held: no caller used that primary")
    for how in ("fail", "unknown"):
        trial.expect(trial.history.count(how) == 0, f"{trial.history.count(how)} {how}")
    trial.conclude()
