"""Connections break before, while and after a call is done; gateways go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore, Settings, errors
from redis_state.gateway import app, create_gateway
from redis_state.gateway.streaming.hub import Hub
from redis_state.http_client import HttpTaskClient
from redis_state.http_client.requests import streams
from redis_state.http_client.requests.server_events import EventReader, ServerEvent
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.stores.sessions.session_log import Entry
from redis_state.testing import eventually
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import paused, tokens
from tests.support.http.http_gateway import EVERYTHING, OverHttp, over_http, url_of
from tests.support.processes.pools import queue_of
from tests.support.servers.faults import Proxy
from tests.support.servers.ports import free_port


def _losing_answers(over: OverHttp, times: int, *, holding: bytes) -> list[int]:
    """Let the proxy lose so many answers that hold a text: what was asked has happened."""
    lost: list[int] = []

    def lose(data: bytes) -> bytes:
        if len(lost) < times and holding in data:
            lost.append(len(data))
            over.proxy.cut()
            return b""
        return data

    over.proxy.change(lose)
    return lost


def _losing_what_follows(over: OverHttp, *, holding: bytes) -> list[int]:
    """Let the proxy hand on an answer that holds a text, and lose all that come behind it."""
    lost: list[int] = []
    handed_on = False

    def lose(data: bytes) -> bytes:
        nonlocal handed_on
        if handed_on:
            lost.append(len(data))
            over.proxy.cut()
            return b""
        handed_on = holding in data
        return data

    over.proxy.change(lose)
    return lost


def _update(number: int) -> StateUpdate:
    return StateUpdate(
        session_id="s",
        task_id="t",
        update_id=f"my update {number}",
        update_type=UpdateType.PROGRESS,
        content={"n": number},
    )


async def _begun(over: OverHttp) -> str:
    """Submit a task that waits for an approval; return its pause."""
    await over.direct.submit("ask", session_id="s", task_id="t")
    return await paused(over.served, "s", "t")


def _recorded_places(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Note where clients are after each chunk that they have read."""
    places: list[str | None] = []

    class Noting(EventReader):
        def feed(self, chunk: bytes) -> list[ServerEvent]:
            found = super().feed(chunk)
            places.append(self.cursor)
            return found

    monkeypatch.setattr(streams, "EventReader", Noting)
    return places


def _numbers(entries: list[Entry[StateUpdate]]) -> list[int]:
    """Return the numbers of the test's own updates."""
    return [e.value.content["n"] for e in entries if e.value.update_id.startswith("my update")]


def _has(entries: list[Entry[StateUpdate]], count: int) -> bool:
    return len(_numbers(entries)) >= count


async def test_a_submit_whose_answer_is_lost_is_repeated_and_submits_once(over: OverHttp) -> None:
    lost = _losing_answers(over, 2, holding=b'"created"')
    made = await over.http.submit("echo", 1, session_id="s")
    assert len(lost) == 2
    assert [task.task_id for task in (await over.direct.find()).tasks] == [made]
    assert await over.http.result("s", made) == 1


async def test_changes_whose_answers_are_lost_happen_once(over: OverHttp) -> None:
    pause_id = await _begun(over)
    lost = _losing_answers(over, 1, holding=b'"approved"')
    assert (await over.http.approve(pause_id, "yes")) is not None
    assert len(lost) == 1
    assert (await over.http.result("s", "t"))["value"] == "yes"
    await over.direct.submit("ask", session_id="s", task_id="c")
    await paused(over.served, "s", "c")
    lost = _losing_answers(over, 1, holding=b'"CANCELLED"')
    # Repeated, it is the same cancel and not one of a task that is over.
    assert await over.http.cancel("s", "c")
    assert len(lost) == 1
    lost = _losing_answers(over, 1, holding=b'"PENDING"')
    assert (await over.http.retry("s", "c")).task_id == "c"
    assert len(lost) == 1
    view = await over.direct.inspect("s", "c")
    assert view is not None
    assert view.retries == 1
    await over.direct.cancel("s", "c")
    lost = _losing_answers(over, 1, holding=b'"task_id"')
    copy = await over.http.rerun("s", "c", new_session_id="copies")
    assert len(lost) == 1
    assert [task.task_id for task in (await over.direct.find(session_id="copies")).tasks] == [copy]


async def test_a_change_is_not_denied_if_what_became_of_it_cannot_be_read(over: OverHttp) -> None:
    pause_id = await _begun(over)
    await over.direct.submit("fail", session_id="s", task_id="f")
    await over.direct.wait("s", "f")
    async with over.caller("root", *EVERYTHING, timeout_s=3) as http:
        lost = _losing_what_follows(over, holding=b'"approved"')
        with pytest.raises(errors.OutcomeUnknown, match="written, then"):
            await http.approve(pause_id, "yes", idempotency_key="k")
        assert lost
        over.proxy.change(None)
        assert await http.approve(pause_id, "yes", idempotency_key="k") is not None
        assert (await http.result("s", "t"))["value"] == "yes"
        lost = _losing_what_follows(over, holding=b'"PENDING"')
        with pytest.raises(errors.OutcomeUnknown, match="written, then"):
            await http.retry("s", "f", idempotency_key="r")
        assert lost
        over.proxy.change(None)
        assert (await http.retry("s", "f", idempotency_key="r")).task_id == "f"
    view = await over.direct.inspect("s", "f")
    assert view is not None
    assert view.retries == 1


async def test_what_may_not_be_repeated_ends_with_an_unknown_outcome(over: OverHttp) -> None:
    await over.direct.submit("fail", session_id="s", task_id="t")
    await over.direct.wait("s", "t")
    lost = _losing_answers(over, 1, holding=b'"counts"')
    with pytest.raises(errors.OutcomeUnknown, match="the connection failed"):
        await over.http.bulk("rerun", status="FAILED")
    assert len(lost) == 1
    assert len((await over.direct.find()).tasks) == 2
    lost = _losing_answers(over, 1, holding=b'"counts"')
    report = await over.http.bulk("rerun", idempotency_key="k", created_before=(await _first(over)))
    again = await over.http.bulk("rerun", idempotency_key="k", created_before=(await _first(over)))
    assert len(lost) == 1
    made = [item.new_task_id for item in report.items]
    assert (len(made), made) == (1, [item.new_task_id for item in again.items])
    assert len((await over.direct.find()).tasks) == 3


async def _first(over: OverHttp) -> Any:
    tasks = (await over.direct.find(newest_first=False)).tasks
    return tasks[1].created_at


async def test_a_gateway_that_is_not_there_is_told_when_there_is_no_more_time() -> None:
    async with HttpTaskClient(f"http://127.0.0.1:{free_port()}", timeout_s=0.06) as http:
        for call in (http.bulk("cancel"), http.submit("echo", session_id="s"), http.workers()):
            with pytest.raises(errors.BackendUnavailable) as caught:
                await call
            # It was not sent, so it has not happened.
            assert type(caught.value) is errors.BackendUnavailable


async def test_a_silent_gateway_is_left_at_the_deadline_and_another_connection_tried(
    over: OverHttp,
) -> None:
    async with over.caller("root", *EVERYTHING, timeout_s=0.9) as hasty:
        await hasty.submit("echo", session_id="s", task_id="t")
        over.proxy.half_open()
        # The first connection hears nothing. The next one does.
        state = await hasty.get("s", "t")
        assert state is not None
    async with over.caller("root", *EVERYTHING, timeout_s=0.9) as hasty:
        # Connected before: what had no connection in time was not sent.
        assert await hasty.get("s", "t") is not None
        over.proxy.silence()
        with pytest.raises(errors.OutcomeUnknown, match="no answer in time"):
            await hasty.submit("echo", session_id="s", task_id="u")
        with pytest.raises(errors.BackendUnavailable) as caught:
            await hasty.get("s", "u")
        assert type(caught.value) is errors.BackendUnavailable
        over.proxy.silence(silent=False)


@pytest.mark.parametrize("rows", [12, pytest.param(300, marks=pytest.mark.full)])
async def test_a_stream_that_is_cut_again_and_again_has_every_row_once_in_order(
    over: OverHttp, rows: int
) -> None:
    await _begun(over)
    store, seen = over.served.store, list[Entry[StateUpdate]]()

    async def follow() -> None:
        async with aclosing(over.http.watch("s", "t")) as updates:
            async for entry in updates:
                seen.append(entry)

    # In small pieces: most cuts come within an event.
    over.proxy.dribble(97)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        await eventually(lambda: len(seen) > 0, "the stream has begun")
        for number in range(rows):
            await store.save_update(_update(number))
            if number % 6 == 5:
                over.proxy.cut()
                await eventually(partial(_has, seen, number - 5), "the client has read on")
        await over.direct.cancel("s", "t")
        await asyncio.wait_for(following, 60)
    assert _numbers(seen) == list(range(rows))
    assert seen[-1].value.content["status"] == "CANCELLED"
    assert over.proxy.cuts >= rows // 12


async def test_a_watch_at_the_end_misses_nothing_when_it_breaks_before_its_first_row(
    over: OverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _begun(over)
    places = _recorded_places(monkeypatch)
    async with aclosing(over.http.watch("s", "t", after="$")) as updates:
        first = asyncio.ensure_future(anext(updates))
        await eventually(lambda: any(places), "the client knows where the end is")
        over.proxy.cut()
        over.proxy.refuse()
        await over.served.store.save_update(_update(0))
        over.proxy.refuse(refusing=False)
        assert (await first).value.content == {"n": 0}


@asynccontextmanager
async def _gateway(store: RedisStateStore) -> AsyncGenerator[str]:
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
    try:
        async with serving_asgi(app, stop=app.end_streams) as port:
            yield f"redis://127.0.0.1:{port}"
    finally:
        await app.aclose()


async def test_waits_and_watches_go_on_at_another_gateway_when_theirs_is_shut_down(
    over: OverHttp,
) -> None:
    pause_id = await _begun(over)
    store = over.served.store
    token = tokens.mint("root", EVERYTHING)
    async with Proxy("redis://127.0.0.1:1") as proxy, HttpTaskClient(url_of(proxy), token) as http:
        async with _gateway(store) as first:
            proxy.lead_to(first)
            waiting = [asyncio.create_task(http.result("s", "t")) for _ in range(3)]
            updates = http.watch("s", "t")
            entries = [await anext(updates)]
            await eventually(lambda: proxy.accepted >= 4, "all of them are connected")
        # It is gone. The next one gets what comes now.
        await store.save_update(_update(0))
        async with _gateway(store) as second:
            proxy.lead_to(second)
            await http.approve(pause_id, "late")
            results = await asyncio.wait_for(asyncio.gather(*waiting), 60)
            entries += [entry async for entry in updates]
    assert [result["value"] for result in results] == ["late"] * 3
    assert _numbers(entries) == [0]
    direct = [entry.cursor async for entry in over.direct.watch("s", "t")]
    assert [entry.cursor for entry in entries] == direct


async def test_a_watch_of_a_silent_task_goes_on_though_rows_of_another_were_dropped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "Hub", partial(Hub, heartbeat_s=0.05))
    places, seen = _recorded_places(monkeypatch), list[Entry[StateUpdate]]()
    few = settings.model_copy(update={"max_updates_per_session": 20})
    token = tokens.mint("root", EVERYTHING)

    async def follow(http: HttpTaskClient) -> None:
        async for entry in http.watch("s", "t"):
            seen.append(entry)

    async with (
        RedisStateStore(few) as store,
        over_http(store, handlers=["ask"]) as over,
        Proxy("redis://127.0.0.1:1") as proxy,
        HttpTaskClient(url_of(proxy), token) as http,
    ):
        pause_id = await _begun(over)
        async with _gateway(store) as first:
            proxy.lead_to(first)
            following = asyncio.create_task(follow(http))
            for number in range(50):
                await store.save_update(_update(number).model_copy(update={"task_id": "other"}))
            end = await store.updates.cursor("s", None)
            await eventually(lambda: places[-1:] == [end], "the client knows where the end is")
        async with _gateway(store) as second:
            proxy.lead_to(second)
            await http.approve(pause_id, "late")
            await asyncio.wait_for(following, 60)
    assert seen[-1].value.content["status"] == "COMPLETE"


async def test_rows_that_retention_removed_are_a_gap_with_where_to_read_on(
    settings: Settings,
) -> None:
    few = settings.model_copy(update={"max_updates_per_session": 10})
    async with RedisStateStore(few) as store, over_http(store, handlers=["ask"]) as over:
        await _begun(over)
        first = await anext(updates := over.http.watch("s", "t"))
        await updates.aclose()
        for number in range(40):
            await store.save_update(_update(number))
        with pytest.raises(errors.CursorGap) as gap:
            await anext(over.http.watch("s", "t", after=first.cursor))
        assert (gap.value.reason, gap.value.cursor) == ("trimmed", first.cursor)
        assert gap.value.missed is not None
        rest = over.http.watch("s", "t", after=gap.value.resume_after)
        assert (await anext(rest)).value.content["n"] >= 10
        await rest.aclose()


async def test_a_watch_ends_with_an_error_when_its_session_is_gone_or_nobody_answers(
    over: OverHttp,
) -> None:
    await _begun(over)
    over.proxy.refuse()
    with pytest.raises(errors.BackendUnavailable):
        async for _ in over.http.watch("s", "t", reconnect_timeout_s=0.2):
            pass
    over.proxy.refuse(refusing=False)
    types = [UpdateType.CHECKPOINT]
    async with aclosing(over.http.watch_updates("s", types=types)) as updates:
        found = await anext(updates)
    assert found.value.update_type is UpdateType.CHECKPOINT
    with pytest.raises(errors.InvalidField, match="types"):
        await anext(over.http.watch_updates("s", types=["ODD"]))


@pytest.mark.parametrize("said", [b"", b"retry: 1\n\n", b"event: expired\ndata: {}\n\n"])
async def test_streams_that_end_at_once_are_no_gateway(said: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with HttpTaskClient(f"http://127.0.0.1:{port}") as http, asyncio.timeout(30):
            with pytest.raises(errors.BackendUnavailable, match="ended at once"):
                await anext(http.watch("s", "t", reconnect_timeout_s=0.5))
    # Each time later.
    assert 1 < asked < 9


async def test_a_token_that_expires_is_replaced_in_calls_and_in_streams(over: OverHttp) -> None:
    pause_id = await _begun(over)
    given: list[str] = []

    async def token() -> str:
        # The first ones are refused, as an expired one is.
        mine = "worn-out" if len(given) in (0, 2) else tokens.mint("ann", EVERYTHING)
        given.append(mine)
        return mine

    async with HttpTaskClient(over.base_url, token) as http:
        state = await http.get("s", "t")
        assert state is not None
        assert state.status is TaskStatus.PAUSED
        async with aclosing(http.watch("s", "t")) as updates:
            await anext(updates)
        await http.approve(pause_id)
    assert len(given) >= 5
    async with HttpTaskClient(over.base_url, lambda: "worn-out") as http:
        for call in (http.get("s", "t"), anext(http.watch("s", "t"))):
            with pytest.raises(errors.AuthenticationFailed) as refused:
                await call
            assert "worn-out" not in str(refused.value)


@pytest.mark.full
async def test_one_caller_with_too_many_requests_waits_until_more_are_taken(
    store: RedisStateStore,
) -> None:
    from redis_state.gateway import GatewayLimits  # noqa: PLC0415 - beside the others it is unused

    limits = GatewayLimits(requests_per_s=50, burst=7, streams=1)
    async with over_http(store, handlers=["echo"], limits=limits) as over:
        found = await asyncio.gather(*(over.http.get("s", "t") for _ in range(8)))
        assert found == [None] * 8
        await over.direct.submit("echo", session_id="s", task_id="t")
        waits = [over.http.wait("s", "t", timeout_s=60) for _ in range(2)]
        assert {state.status for state in await asyncio.gather(*waits)} == {TaskStatus.COMPLETE}
