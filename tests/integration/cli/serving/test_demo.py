"""The demo as its user runs it, from the package alone: in a folder without a checkout."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

for _needed in ("arq", "typer", "rich"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

from redis_state import RedisStateStore, Settings  # noqa: E402
from redis_state.demo.flow import FlowFacts, flow_problems  # noqa: E402
from redis_state.demo.pool import WorkerPool  # noqa: E402
from redis_state.demo.run import NOTE, ORDERS, Agent, update_problems, worker_problems  # noqa: E402
from tests.support.demos import (  # noqa: E402
    Ran,
    are_gone,
    end,
    start,
    stated_until,
    stopped,
    without_lifetime,
    workers_in,
)

# As few workers as the demo takes; with chaos it runs as many as it has by itself.
FEW = ("--workers", "2")


async def demo(folder: Path, *arguments: str, **options: Any) -> Ran:
    return await end(await start(folder, "redis_state", "demo", *arguments, **options))


@pytest.mark.slow
async def test_every_claim_of_the_demo_holds(tmp_path: Path) -> None:
    # Of another server: the demo's own has no replica, and knows no login.
    others = {
        "REDIS_STATE_GUARANTEE": "replicated",
        "REDIS_STATE_PASSWORD_FILE": str(tmp_path / "password"),
    }
    ran = await demo(tmp_path, "--json", *FEW, workers_forked=False, **others)
    assert ran.status == 0, ran.err
    outcome = ran.outcome
    assert (outcome["ok"], outcome["problems"]) == (True, [])
    agents = outcome["agents"]
    assert [agent["name"] for agent in agents] == list(ORDERS)
    assert outcome["updates_seen"] == outcome["updates_written"]
    assert outcome["updates_seen"] == sum(agent["updates"] for agent in agents)
    steered, cancelled, *plain = agents
    assert steered["result"]["notes"] == [NOTE]
    assert (cancelled["status"], cancelled["result"]) == ("CANCELLED", None)
    for agent in (steered, *plain):
        assert agent["status"] == "COMPLETE"
        assert agent["result"]["approved"] is True
    moved = [agent for agent in agents if agent["paused_by"] == outcome["retired"]]
    assert moved
    assert all(agent["resumed_by"] not in {"", outcome["retired"]} for agent in moved)
    flow = outcome["flow"]
    assert flow["found"] == {"COMPLETE": 3, "CANCELLED": 1}
    assert 1 <= flow["most_running"] <= flow["limit"] == 3
    assert len(flow["occurrences"]) == len(set(flow["occurrences"])) >= 1
    assert not os.listdir(tmp_path)  # noqa: PTH208 - blocks for no time
    assert len(ran.workers) >= 3
    await are_gone(ran.workers)


@pytest.mark.slow
async def test_with_chaos_another_worker_takes_over_from_the_killed_one(tmp_path: Path) -> None:
    ran = await demo(tmp_path, "--chaos", COLUMNS="80")
    assert ran.status == 0, ran.out
    assert len(set(workers_in(ran.out))) >= 3
    assert re.search(r"killing worker \S+ \(-9\) while it prepares order-\d", ran.out)
    assert re.search(r"order-\d +COMPLETE +\d+ .*pid \d+ +pid \d+", ran.out)
    assert "each seen once and in order" in ran.out
    assert "the limit is 3." in ran.out
    assert "find by an attribute: 1 CANCELLED, 3 COMPLETE." in ran.out
    assert re.search(r"A schedule fired each second: \d+ occurrences?, one task each", ran.out)
    assert max(map(len, ran.out.splitlines()[-12:-2])) <= 80


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (["--url", "http://example.org"], "unknown scheme 'http'"),
        (["--workers", "1"], "--workers"),
    ],
)
async def test_a_wrong_call_ends_with_status_2(
    tmp_path: Path, arguments: list[str], stated: str
) -> None:
    ran = await demo(tmp_path, *arguments)
    assert ran.status == 2
    assert stated in ran.err
    assert "Traceback" not in ran.err


async def test_an_unreachable_server_ends_with_status_5_and_no_password(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    url = f"redis://ann:s3cret@127.0.0.1:{unused_tcp_port}/0"
    ran = await demo(tmp_path, "--url", url, REDIS_STATE_CALL_TIMEOUT_S="0.5")
    assert ran.status == 5
    assert f"127.0.0.1:{unused_tcp_port}" in ran.err
    assert "s3cret" not in ran.out + ran.err
    assert "Traceback" not in ran.err
    assert ran.workers == []


@pytest.mark.role("any", why="the demo has a namespace of its own")
@pytest.mark.slow
async def test_a_server_that_others_use_is_left_as_it_was(
    tmp_path: Path, store: RedisStateStore, settings: Settings
) -> None:
    before = await without_lifetime(store)
    url = settings.url.get_secret_value()
    ran = await demo(tmp_path, "--json", "--pace", "0", *FEW, "--url", url)
    assert ran.status == 0, ran.err
    assert await without_lifetime(store) <= before


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    # `tests/examples/test_review.py` sends SIGINT to the same pool.
    [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)],
)
async def test_nothing_is_left_when_it_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    command = ("redis_state", "demo", "--json", "--pace", "2", *FEW)
    # Workers whose server is killed with the demo wait for it that long.
    process = await start(tmp_path, *command, REDIS_STATE_CALL_TIMEOUT_S="1")
    stated = await stated_until(process, "RUNNING")
    assert len(set(workers_in(stated))) == 2
    await stopped(process, how, stated)


async def test_a_worker_that_dies_is_reported_at_once_with_its_last_lines(tmp_path: Path) -> None:
    pool = WorkerPool(
        size=1,
        url="nonsense://x",
        namespace="demo",
        queue="queue",
        logs=tmp_path / "workers",
        target="redis_state.demo.agents:worker",
    )
    async with pool, asyncio.timeout(60):
        reported = await pool.death()
    assert re.match(r"worker \S+ ended with status 2, see \S+worker-\d\.log:", reported)
    assert "unknown scheme 'nonsense'" in reported


def test_a_lost_a_doubled_and_a_misplaced_update_are_problems() -> None:
    written = ["a", "b", "c"]
    assert list(update_problems(written, written)) == []
    for seen in (["a", "b"], ["a", "b", "b", "c"], ["a", "c", "b"]):
        assert list(update_problems(seen, written)), seen


def test_an_agent_that_ends_otherwise_is_a_problem() -> None:
    steered, cancelled, plain, _ = ORDERS
    shipped: dict[str, Any] = {"total": 82, "approved": True, "notes": []}
    good = [
        Agent(steered, status="COMPLETE", result=shipped | {"notes": [NOTE]}),
        Agent(cancelled, status="CANCELLED"),
        Agent(plain, status="COMPLETE", result=shipped),
    ]
    assert [problem for agent in good for problem in agent.problems()] == []
    wrong = [
        Agent(steered, status="COMPLETE", result=shipped),
        Agent(cancelled, status="COMPLETE"),
        Agent(plain, status="FAILED"),
        Agent(plain, status="COMPLETE", result=shipped | {"total": 164}),
    ]
    for agent in wrong:
        assert list(agent.problems()), agent


def test_an_order_that_stays_in_its_process_is_a_problem() -> None:
    moved = Agent("order-1", paused_by="one", resumed_by="two")
    stayed = Agent("order-3", paused_by="one", resumed_by="one")
    taken = Agent("order-4", killed="three", taken_over_by="two")
    kept = Agent("order-4", killed="three", taken_over_by="three")

    def wrong(*agents: Agent, chaos: bool = False) -> list[str]:
        return list(worker_problems(agents, "one", "three" if chaos else "", chaos=chaos))

    assert wrong(moved) == wrong(moved, taken, chaos=True) == []
    assert wrong(stayed) == wrong() == ["no agent was resumed by another process than paused it"]
    lost = ["no agent was taken over from the worker that was killed"]
    assert wrong(moved, chaos=True) == wrong(moved, kept, chaos=True) == lost


def test_a_limit_a_find_and_a_schedule_that_do_otherwise_are_problems() -> None:
    def wrong(most: int, found: str, *occurrences: str) -> list[str]:
        facts = FlowFacts(3, most, {found: 1}, list(occurrences))
        return list(flow_problems(facts, {"order-1": found}, {"order-1": "COMPLETE"}))

    assert wrong(3, "COMPLETE", "10:00:01", "10:00:02") == []
    assert wrong(4, "COMPLETE", "10:00:01") == ["4 ran at a time, the limit is 3"]
    assert wrong(3, "RUNNING", "10:00:01")[0].startswith("find returned")
    assert wrong(3, "COMPLETE") == ["the schedule did not fire"]
    assert wrong(3, "COMPLETE", "10:00:01", "10:00:01")[0].startswith("an occurrence")
