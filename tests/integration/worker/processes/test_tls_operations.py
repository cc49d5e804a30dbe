"""What makes something, repeated under its key by many callers over TLS, on links that die.

Every call is made twice at once, and once more behind that. It has one effect.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import (
    InvalidTransition,
    Settings,
    TaskFailed,
    TokenResolved,
    VersionConflict,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Handler, OpenPause, Rate, TaskClient, TaskContext
from tests.support.payloads import KEYS
from tests.support.processes.pools import pool
from tests.support.servers.proxies.dying_links import over_tls, while_links_die
from tests.support.tasks.schedules import hourly

T = TypeVar("T")

CALLERS = 40
_WAIT_S = 60


async def same(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call twice at once, and once more; all have the same answer."""
    answers = [*await asyncio.gather(call(), call()), await call()]
    assert answers[1:] == answers[:-1]
    return answers[0]


async def echo(ctx: TaskContext) -> Any:
    """Return the input and a random id, which a step has recorded."""
    return [ctx.input, await ctx.step("draw", lambda: uuid.uuid4().hex)]


async def breaks(ctx: TaskContext) -> Any:
    """Fail until it is retried."""
    drawn = await ctx.step("draw", lambda: uuid.uuid4().hex)
    view = await TaskClient(ctx.store).inspect(ctx.task.session_id, ctx.task.task_id)
    assert view is not None
    if not view.retries:
        raise ValueError(drawn)
    return [ctx.input, drawn]


async def listens(ctx: TaskContext) -> list[Any]:
    """Collect steering, and signals until the last one."""
    steered = await ctx.inbox.wait()
    got: list[Any] = []
    while not got or got[-1] != "last":
        got.append(await ctx.receive("s", hold_s=_WAIT_S))
    steered += ctx.inbox.take()
    return [got, [event.payload["text"] for event in steered]]


async def votes(ctx: TaskContext) -> list[Any]:
    """Ask three for two approvals."""
    decision = await ctx.approval("Refund?", approvals=2, of=("ann", "ben", "cid"))
    return [decision.approved, sorted([vote.actor, vote.value] for vote in decision.votes)]


async def copy(client: TaskClient, session: str, number: int) -> None:
    """Submit, rerun and fork one by one, then rerun all that there is."""
    first = await same(lambda: client.submit("echo", number, session_id=session, task_id="first"))
    given, drawn = await client.result(session, first, timeout_s=_WAIT_S)
    assert given == number
    again = await same(lambda: client.rerun(session, first, new_task_id="again"))
    fork = await same(lambda: client.fork(session, first, new_task_id="fork"))
    other = (await client.result(session, again, timeout_s=_WAIT_S))[1]
    assert other != drawn
    assert await client.result(session, fork, timeout_s=_WAIT_S) == [number, drawn]

    async def are_found() -> bool:
        return (await client.count(session_id=session))[TaskStatus.COMPLETE] == 3

    await eventually(are_found, "they are found", timeout_s=_WAIT_S)
    report = await client.bulk("rerun", session_id=session, idempotency_key=f"k {number}")
    assert {item.outcome for item in report.items} == {"done"}
    made = [item.new_task_id for item in report.items]
    await eventually(are_copied(client, session, 6), "they are copied", timeout_s=_WAIT_S)
    report = await client.bulk("rerun", session_id=session, idempotency_key=f"k {number}")
    assert sorted(str(item.new_task_id) for item in report.items) == sorted(map(str, made))
    assert len(await client.store.list_tasks(session)) == 6


def are_copied(client: TaskClient, session: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def so_many() -> bool:
        return (await client.count(session_id=session))[TaskStatus.COMPLETE] == count

    return so_many


async def retry(client: TaskClient, session: str, number: int) -> None:
    """Retry a task that failed, and cancel one."""
    task = await client.submit("breaks", number, session_id=session, task_id="t")
    with pytest.raises(TaskFailed) as failed:
        await client.result(session, task, timeout_s=_WAIT_S)
    calls = [client.retry(session, task, idempotency_key="k") for _ in range(3)]
    assert {each.task_id for each in await asyncio.gather(*calls)} == {task}
    given, drawn = await client.result(session, task, timeout_s=_WAIT_S)
    assert given == number
    assert drawn in str(failed.value)
    assert (await client.retry(session, task, idempotency_key="k")).status is TaskStatus.COMPLETE
    with pytest.raises(InvalidTransition):
        await client.retry(session, task, idempotency_key="another")
    view = await client.inspect(session, task)
    assert view is not None
    assert view.retries == 1
    late = await client.submit("echo", session_id=session, delay=timedelta(hours=1))
    assert await same(lambda: client.cancel(session, late, idempotency_key="c"))
    events = await client.store.list_steering(session, task_id=late)
    assert [event.event_id for event in events] == ["c"]


async def talk(client: TaskClient, session: str, number: int) -> None:
    """Signal and steer a task."""
    task = await client.submit("listens", session_id=session, task_id="t")
    say: dict[str, Any] = {"text": f"to {number}"}
    kind = SteeringEventType.USER_MESSAGE
    await asyncio.gather(
        *(client.steer(session, task, kind, say, event_id="e") for _ in range(2)),
    )
    for name in ("a", "b"):
        payload = [name, number, "x" * 3_000]
        assert await same(partial(client.signal, session, task, "s", payload, idempotency_key=name))
    await same(lambda: client.signal(session, task, "s", "last", idempotency_key="last"))
    got, steered = await client.result(session, task, timeout_s=_WAIT_S)
    assert [each[:2] for each in got[:-1]] == [["a", number], ["b", number]]
    assert got[-1] == "last"
    assert steered == [f"to {number}"]


async def vote(client: TaskClient, session: str, number: int) -> None:
    """Hand a vote on, and vote."""
    task = await client.submit("votes", session_id=session, task_id="t")
    found: list[OpenPause] = await eventually(
        lambda: client.pauses(session), "it asks", timeout_s=_WAIT_S
    )
    token = str(found[0].token)
    await same(lambda: client.delegate(token, "dee", actor="cid", session_id=session))
    for actor in ("dee", "ann"):
        key: dict[str, Any] = {"actor": actor, "idempotency_key": f"k {actor}"}
        await asyncio.gather(
            *(client.approve(token, number, session_id=session, **key) for _ in range(2))
        )
        await client.approve(token, number, session_id=session, **key)
    with pytest.raises(TokenResolved):
        await client.reject(token, session_id=session, actor="ann")
    assert await client.result(session, task, timeout_s=_WAIT_S) == [
        True,
        [["ann", number], ["dee", number]],
    ]


async def plan(client: TaskClient, session: str, number: int) -> None:
    """Save, change and trigger a schedule, and set limits and a rate."""
    given: dict[str, Any] = {"handler": "echo", "input": number}
    # Other braces than those of a place are doubled.
    schedule = hourly(f"of {session}", session_id=session.replace("{}", "{{}}"), **given)
    first = await same(lambda: client.schedules.save(schedule))
    changed = replace(schedule, every=timedelta(hours=2))
    second = await same(lambda: client.schedules.save(changed))
    with pytest.raises(VersionConflict):
        await client.schedules.save(schedule, expected=first.revision)
    assert (await client.schedules.get(schedule.schedule_id)).revision == second.revision
    assert (await same(lambda: client.schedules.pause(schedule.schedule_id))).paused
    made = await same(lambda: client.schedules.trigger(schedule.schedule_id, idempotency_key="k"))
    assert (await client.result(session, made.task_id, timeout_s=_WAIT_S))[0] == number
    assert len(await client.store.list_tasks(session)) == 1
    rate = Rate(number + 1, timedelta(minutes=1))
    await same(lambda: client.queues.limit(session, running=number + 1, rate=rate))
    await same(lambda: client.queues.limit_key(session, "k", running=2))
    await same(lambda: client.queues.pause(session))
    info = await client.queues.get(session)
    assert (info.limit, info.rate, info.paused) == (number + 1, rate, True)
    assert await client.schedules.delete(schedule.schedule_id)
    assert schedule.schedule_id not in [
        view.schedule.schedule_id for view in await client.schedules.list()
    ]


HANDLERS: dict[str, Handler] = {
    "echo": echo,
    "breaks": breaks,
    "listens": listens,
    "votes": votes,
}


@pytest.mark.parametrize("do", [copy, retry, talk, vote, plan])
async def test_what_40_callers_repeat_under_a_key_has_one_effect_though_their_links_die(
    settings: Settings,
    tmp_path: Path,
    do: Callable[[TaskClient, str, int], Coroutine[Any, Any, None]],
) -> None:
    sealed = {"payload_keys": SecretStr(KEYS[0])}
    async with (
        over_tls(settings, tmp_path, dribbled=700, **sealed) as (store, proxy),
        pool(store, HANDLERS, max_tasks=50) as client,
    ):
        callers = [
            asyncio.create_task(do(client, f"s {number} {{}}*:%\u00e9", number))
            for number in range(CALLERS)
        ]
        await while_links_die(proxy, callers)
