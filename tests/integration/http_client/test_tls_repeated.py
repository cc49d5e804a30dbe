"""What makes something, repeated over HTTP and TLS under its key when links die, is done once."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import BackendError, RedisStateStore
from redis_state.http_client import HttpTaskClient
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import OpenPause, TaskContext
from tests.support.http import gateway
from tests.support.http.gateway import tokens
from tests.support.http.http_gateway import EVERYTHING, OverHttp, over_http
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.servers.proxies.dying_links import while_links_die
from tests.support.tasks.schedules import hourly

T = TypeVar("T")

CALLERS = 40
# More than a busy machine takes: each call that is given up leaves a connection to be ended.
_TIMEOUT_S = 6.0
_AGAIN_S = 0.1
_WAIT_S = 60


async def whole(ctx: TaskContext) -> Any:
    """Fail until it is retried; then ask, take a signal, and return all of it."""
    drawn = await ctx.step("draw", lambda: uuid.uuid4().hex)
    if not (ctx.forked or await _is_retried(ctx)):
        raise ValueError(drawn)
    decision = await ctx.pause("ask", name="ask")
    return [drawn, decision.value, await ctx.receive("s", hold_s=0.1)]


async def _is_retried(ctx: TaskContext) -> bool:
    found = await ctx.store.tasks.load_fields(ctx.task.session_id, ctx.task.task_id)
    return found is not None and bool(int(found.fields.get("retries", 0)))


async def surely(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call until its outcome is known, then once more; return the second answer."""
    left = 2
    while True:
        try:
            answer = await call()
        except BackendError:
            await asyncio.sleep(_AGAIN_S)
            continue
        left -= 1
        if not left:
            return answer


async def call(over: OverHttp, client: HttpTaskClient, number: int) -> None:
    session = f"s {number} %25:\u00e9"
    submit = partial(client.submit, "whole", number, session_id=session, task_id="t")
    task = await surely(submit)
    assert (await over.direct.wait(session, task, timeout_s=_WAIT_S)).status is TaskStatus.FAILED
    await surely(partial(client.retry, session, task, idempotency_key="r"))
    await settle(over, client, session, task, number)
    drawn, value, said = await over.direct.result(session, task, timeout_s=_WAIT_S)
    assert (value, said) == (number, {"to": number})
    fork = await surely(partial(client.fork, session, task, before="ask", new_task_id="f"))
    await settle(over, client, session, fork, number)
    assert (await over.direct.result(session, fork, timeout_s=_WAIT_S))[0] == drawn
    await surely(partial(client.rerun, session, task, new_task_id="again"))
    await surely(partial(client.cancel, session, "again", idempotency_key="c"))
    schedule = hourly(f"of {number}", handler="echo", session_id=f"{session} scheduled")
    await surely(partial(client.schedules.save, schedule))
    trigger = partial(client.schedules.trigger, schedule.schedule_id, idempotency_key="k")
    made = await surely(trigger)
    await surely(partial(client.queues.limit, session, running=number + 1))
    assert (await over.direct.queues.get(session)).limit == number + 1
    assert [each.task_id for each in await over.direct.store.list_tasks(made.session_id)] == [
        made.task_id
    ]
    tasks = await over.direct.store.list_tasks(session)
    assert sorted(each.task_id for each in tasks) == ["again", "f", "t"]
    view = await over.direct.inspect(session, task)
    assert view is not None
    assert view.retries == 1
    steered = await over.direct.store.list_steering(session, task_id="again")
    assert Counter(event.event_id for event in steered)["c"] <= 1


async def settle(
    over: OverHttp, client: HttpTaskClient, session: str, task: str, number: int
) -> None:
    """Decide the pause of a task, and send it its signal."""

    async def asked() -> OpenPause | None:
        found = [each for each in await over.direct.pauses(session) if each.task_id == task]
        return found[0] if found else None

    pause = await eventually(asked, f"{task} asks", timeout_s=_WAIT_S)
    assert pause is not None
    key: dict[str, Any] = {"idempotency_key": f"k {task}"}
    await surely(partial(client.approve, str(pause.pause_id), number, session_id=session, **key))
    await surely(partial(client.signal, session, task, "s", {"to": number}, **key))


# asyncio of Python 3.11.2 leaves the socket of a handshake that is cut to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_40_callers_over_http_and_tls_repeat_what_is_not_known_and_it_is_done_once(
    store: RedisStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gateway.HANDLERS, "whole", whole)
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        over_http(store, handlers=["whole", "echo"]) as over,
        Proxy(f"redis://127.0.0.1:{over.proxy.port}", tls=tls_server_context(cert, key)) as proxy,
    ):
        proxy.dribble(700)

        async def caller(number: int) -> None:
            token = tokens.mint(f"caller {number}", EVERYTHING)
            address = f"https://127.0.0.1:{proxy.port}"
            async with HttpTaskClient(address, token, tls=trusting, timeout_s=_TIMEOUT_S) as client:
                await call(over, client, number)

        callers = [asyncio.create_task(caller(number)) for number in range(CALLERS)]
        await while_links_die(proxy, callers)
