"""What has happened is not reported as what did not, if it cannot be read behind the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.gateway import create_gateway
from redis_state.models import TaskStatus
from redis_state.stores.schedules import ScheduleStore
from redis_state.worker import TaskClient
from redis_state.worker.queue.control import Queues
from redis_state.worker.tasks.children.cancelling import CancelCascade
from redis_state.worker.tasks.operate.reopen import Reopening
from tests.support.http.gateway import at, caller, code_of, tokens
from tests.support.http.http_gateway import EVERYTHING
from tests.support.processes.pools import client_of, queue_of
from tests.support.samples import changed
from tests.support.servers.changes.leaving import Leaving
from tests.support.servers.faults import Proxy
from tests.support.tasks.schedules import hourly


@pytest.mark.parametrize("change", ["pause", "cancel"])
async def test_a_gateway_does_not_deny_what_has_happened(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async with (
        client_of(store) as client,
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=0.3) as far,
    ):
        task_id, queue = await client.submit("h", session_id="s"), queue_of(settings)
        app = create_gateway(far, auth=tokens, queue=queue)
        leaving = Leaving(proxy, far.transport, monkeypatch)
        leaving.behind(*((Queues, "pause") if change == "pause" else (TaskClient, "cancel")))
        path = f"/v1/queues/{queue}/pause" if change == "pause" else at("s", task_id, "cancel")
        async with caller(app, "ann", *EVERYTHING) as ann:
            answered = await ann.post(path, json={})
        assert (answered.status_code, code_of(answered)) == (503, "outcome_unknown")
        await app.aclose()
        if change == "pause":
            assert (await client.queues.get(queue)).paused
        else:
            assert (await client.wait("s", task_id)).status is TaskStatus.CANCELLED


_CALLS: dict[str, tuple[type[Any], str, Callable[[TaskClient], Awaitable[Any]]]] = {
    "cancel": (CancelCascade, "cancel_waiting", lambda distant: distant.cancel("s", "waits")),
    "retry": (Reopening, "_reopen_all", lambda distant: distant.retry("s", "over")),
    "pause": (ScheduleStore, "save", lambda distant: distant.schedules.pause("s")),
    "trigger": (ScheduleStore, "save", lambda distant: distant.schedules.trigger("s")),
}


@pytest.mark.parametrize("call", _CALLS)
async def test_a_client_does_not_deny_what_has_happened(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    kind, name, make = _CALLS[call]
    async with (
        client_of(store) as client,
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=0.3) as far,
        TaskClient(far, queue=queue_of(settings)) as distant,
    ):
        await client.schedules.save(hourly())
        for task_id in ("waits", "over"):
            await client.submit("h", session_id="s", task_id=task_id)
        assert await client.cancel("s", "over")
        Leaving(proxy, far.transport, monkeypatch).behind(kind, name)
        with pytest.raises(OutcomeUnknown, match="written, then"):
            await make(distant)
