"""AG-UI over HTTP: a run is a task, and the stream is valid wherever a client begins to read."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("ag_ui", reason="needs ag-ui-protocol")

import httpx

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.testing import eventually
from tests.support.chat.ag_ui import AgUiClient, run_input
from tests.support.chat.chats import HANDLERS
from tests.support.http.asgi_servers import PLAIN, serving_asgi
from tests.support.http.gateway import Served, tokens
from tests.support.processes.pools import agent, client_of, queue_of, serving
from tests.support.processes.worker_processes import stop, worker_process

ALL = ("read:*", "submit:*", "resolve:*", "steer:*")


@asynccontextmanager
async def client(chat: Served, *scopes: str) -> AsyncGenerator[AgUiClient]:
    """Reach the gateway over a real server: a test's transport would hold a stream back."""
    headers = {"authorization": f"Bearer {tokens.mint('ann', scopes or ALL)}"}
    async with (
        serving_asgi(chat.app, stop=chat.app.end_streams) as port,
        httpx.AsyncClient(
            verify=PLAIN, base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30
        ) as http,
    ):
        yield AgUiClient(http)


async def test_a_run_shows_texts_thoughts_tools_steps_state_and_its_result(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("talk", run_input("s", "t"))
    assert ann.kinds("CUSTOM") == [
        "RUN_STARTED",
        "STEP_STARTED",
        *("REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT"),
        *("REASONING_MESSAGE_END", "REASONING_END"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT"),
        "TEXT_MESSAGE_END",
        *("STEP_FINISHED", "STEP_STARTED"),
        *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("STATE_SNAPSHOT", "STATE_DELTA"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert list(ann.text().values()) == ["Hello"]
    assert ann.events[0]["runId"] == "t"
    assert ann.of("STATE_DELTA")[0]["delta"][0]["path"] == "/a~1b~0c"
    assert ann.events[-1]["result"] == {"ok": True}
    assert ann.events[-1]["outcome"] == {"type": "success"}


async def test_a_result_that_is_text_is_a_message(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("say", run_input("s", "t", "hi"))
    assert list(ann.text().values()) == ["you said hi"]


async def test_a_client_reads_on_behind_every_event_without_loss_or_repeat(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("talk", run_input("s", "t"))
        assert len(ann.ids) == len(ann.events)
        other = ann
        for number, event_id in enumerate(ann.ids, start=1):
            other = AgUiClient(ann.http, ids=[event_id])
            # It has what came before.
            for event in ann.events[:number]:
                other.checker.check(event)
            await other.connect("s", "t")
            assert other.events == ann.events[number:], event_id
            assert other.ids[1:] == ann.ids[number:]
        assert other.status == 204


async def test_who_joins_gets_an_opening_from_which_the_rest_is_valid(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("talk", run_input("s", "t"))
        late = await AgUiClient(ann.http).connect("s", "t")
        assert late.kinds()[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
        messages = late.events[1]["messages"]
        assert [each["role"] for each in messages] == [
            *("user", "reasoning", "assistant", "assistant", "tool")
        ]
        assert late.text() == ann.text()
        assert late.of("STATE_SNAPSHOT")[0]["snapshot"] == {"count": 1, "a/b~c": [2]}
        assert late.events[-1]["outcome"] == {"type": "success"}
        # All of it from its begin, for who has nothing.
        again = await AgUiClient(ann.http).connect("s", "t", params={"after": "0"})
        assert again.kinds("CUSTOM") == ann.kinds("CUSTOM")
        assert again.ids[1:] == ann.ids[1:]


async def test_a_client_that_leaves_stops_nothing_and_two_read_one_run(chat: Served) -> None:
    async with client(chat) as ann:
        async with ann.running("wait", run_input("s", "t")) as events:
            async for event in events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    break
        seen = list(ann.ids)
        bob = AgUiClient(ann.http)
        async with bob.connected("s", "t") as of_bob, ann.connected("s", "t") as of_ann:
            bobs = [await anext(of_bob) for _ in range(3)]
            kinds = [each["type"] for each in bobs]
            assert kinds == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START"]
            await chat.client.signal("s", "t", "go")
            async for _ in of_bob:
                pass
            async for _ in of_ann:
                pass
    assert list(ann.text().values()) == ["one two"]
    assert bob.text() == ann.text()
    assert ann.kinds().count("RUN_STARTED") == 1
    assert ann.ids[: len(seen)] == seen
    state = await chat.client.get("s", "t")
    assert state is not None
    assert state.status.value == "COMPLETE"


async def test_the_same_run_posted_again_is_the_same_task(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("say", run_input("s", "t", "hi"))
        again = await AgUiClient(ann.http).run("say", run_input("s", "t", "hi"))
        assert again.kinds() == ["RUN_STARTED", "MESSAGES_SNAPSHOT", *ann.kinds()[-4:]]
        assert len(await chat.store.list_tasks("s")) == 1
        for handler, text in (("talk", "hi"), ("say", "bye")):
            other = await ann.http.post(f"/v1/ag-ui/{handler}", json=run_input("s", "t", text))
            assert other.status_code == 409
            assert other.json()["error"]["code"] == "key_reused"


async def test_an_interrupt_is_a_pause_and_resume_decides_it_once(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("approve", run_input("s", "t"))
        outcome = ann.events[-1]["outcome"]
        assert outcome["type"] == "interrupt"
        (interrupt,) = outcome["interrupts"]
        assert interrupt["metadata"]["payload"] == {"who": "bob"}
        assert interrupt["responseSchema"]["required"] == ["approved"]
        # Who joins a run that waits learns what for, and so does who reads on.
        joined = await AgUiClient(ann.http).connect("s", "t")
        assert joined.events[-1]["outcome"] == outcome
        assert (await AgUiClient(ann.http, ids=ann.ids[-1:]).connect("s", "t")).status == 204

        payload = {"approved": True, "value": 7}
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
        resume = run_input("s", "r2", resume=[entry])
        await ann.run("approve", resume)
        assert ann.events[-1]["outcome"] == {"type": "success"}
        assert ann.events[-1]["runId"] == "r2"
        assert list(ann.text().values()) == ["May I?", "ann: True, 7"]

        # The same answer again is a repetition; another one comes too late.
        again = await AgUiClient(ann.http).run("approve", resume)
        assert again.text() == ann.text()
        other = [{**entry, "status": "cancelled"}]
        late = await ann.http.post("/v1/ag-ui/approve", json=run_input("s", "r3", resume=other))
        assert late.status_code == 409
        assert late.json()["error"]["by"] == "ann"
        # A reader whose run was interrupted is in the next one.
        rest = AgUiClient(ann.http, ids=joined.ids[-1:])
        for event in joined.events:
            rest.checker.check(event)
        await rest.connect("s", "t")
        assert rest.kinds("CUSTOM")[0] == "RUN_STARTED"
        assert rest.events[-1]["type"] == "RUN_FINISHED"


async def test_a_pause_decided_elsewhere_leaves_no_stale_interrupt(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("approve", run_input("s", "t"))
        (interrupt,) = ann.events[-1]["outcome"]["interrupts"]
        closing = next(n for n, each in enumerate(ann.ids) if "!" in each)
        decided = await ann.http.post(
            f"/v1/pauses/{interrupt['id']}/decision", json={"approved": False}
        )
        assert decided.status_code == 200
        # It has all but the end of the run that was interrupted: for it there was none.
        behind = AgUiClient(ann.http, ids=ann.ids[closing - 1 : closing])
        for event in ann.events[:closing]:
            behind.checker.check(event)
        await behind.connect("s", "t")
        assert behind.kinds().count("RUN_FINISHED") == 1
        assert behind.events[-1]["outcome"] == {"type": "success"}


async def test_a_task_that_fails_is_an_error_of_the_run(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("fail", run_input("s", "t"))
        assert ann.events[-1]["type"] == "RUN_ERROR"
        assert "no luck" in ann.events[-1]["message"]
        assert list(ann.text().values()) == ["so"]
        late = await AgUiClient(ann.http).connect("s", "t")
        assert late.kinds() == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_ERROR"]


async def test_a_cancelled_task_is_a_cancelled_run(chat: Served) -> None:
    async with client(chat) as ann:
        async with ann.running("approve", run_input("s", "t")) as events:
            async for _ in events:
                pass
        await chat.client.cancel("s", "t")
        late = await AgUiClient(ann.http).connect("s", "t")
        assert late.events[-1]["outcome"] == {"type": "cancelled"}


async def test_forty_clients_of_one_run_have_the_same_events(chat: Served) -> None:
    async with client(chat) as ann:
        async with ann.running("wait", run_input("s", "t")) as events:
            await anext(events)
        others = [AgUiClient(ann.http) for _ in range(40)]
        reading = [
            asyncio.create_task(each.connect("s", "t", params={"after": "0"})) for each in others
        ]
        await eventually(lambda: all(each.events for each in others), "all of them read")
        await chat.client.signal("s", "t", "go")
        await asyncio.gather(*reading)
        # What is said twice is encoded once for each, under the same ids.
        assert {tuple(each.ids) for each in others} == {tuple(others[0].ids)}
        assert all(list(each.text().values()) == ["one two"] for each in others)


async def test_a_place_that_the_log_has_lost_is_refused_and_joining_works(
    store: RedisStateStore,
) -> None:
    bounded = store.settings.model_copy(update={"max_updates_per_session": 8})
    async with RedisStateStore(bounded) as small:
        app = create_gateway(small, auth=tokens, queue=queue_of(bounded))
        async with serving(agent(bounded, HANDLERS)), client_of(small) as tasks:
            async with client(Served(app, tasks, small)) as ann:
                await ann.run("talk", run_input("s", "t"))
                for number in range(8):
                    await ann.http.post("/v1/ag-ui/say", json=run_input("s", f"u{number}"))
                url, lost = "/v1/sessions/s/tasks/t/ag-ui", {"last-event-id": ann.ids[3]}
                refused = await ann.http.get(url, headers=lost)
                assert refused.status_code == 410
                assert refused.json()["error"]["code"] == "cursor_gap"
                late = await AgUiClient(ann.http).connect("s", "t")
                assert late.events[-1]["outcome"] == {"type": "success"}
            await app.aclose()


async def test_no_token_of_a_pause_is_in_a_stream(chat: Served) -> None:
    async with client(chat) as ann:
        await ann.run("blurt", run_input("s", "t"))
        (pause,) = await chat.client.pauses("s")
        assert pause.token is not None
        assert pause.token not in json.dumps(ann.events)
        assert "[token]" in json.dumps(ann.events)


async def test_who_may_not_read_or_submit_gets_nothing(chat: Served) -> None:
    async with client(chat, "submit:*") as ann:
        refused = await ann.http.post("/v1/ag-ui/say", json=run_input("s", "t"))
        assert refused.status_code == 403
        assert await chat.client.get("s", "t") is None
    async with client(chat, "read:*") as ann:
        refused = await ann.http.post("/v1/ag-ui/say", json=run_input("s", "t"))
        assert refused.status_code == 403
        unknown = await ann.http.get("/v1/sessions/s/tasks/t/ag-ui")
        assert unknown.status_code == 404
    await chat.client.submit("say", None, session_id="s", task_id="t")
    async with client(chat, "read:session:other", "resolve:tag:x") as ann:
        for url in ("/v1/sessions/s/tasks/t/ag-ui", "/v1/sessions/s/tasks/none/ag-ui"):
            assert (await ann.http.get(url)).json() == unknown.json()


NO_CURSORS = (
    *("1", "-", "$", "00", "0-", "-1-1", "1-2-3", "1-2-XYZ", "1-1.1.1", "1-1.", "1-1?1", "1-1~-1"),
    *(
        "0x1-1",
        "1_0-1",
        "1-1 ~1",
        "1-1,2-2",
        "\u0661-1",
        "1-1\u00b2",
        "9" * 19 + "-1",
        "1-" + "9" * 19,
    ),
    *("1-1~1234567", "1-1-1f852a4c!!1", "1-1-1F852A4C", "1" * 9_000, "%00", "null", "{}"),
)


async def test_what_is_no_cursor_is_refused_by_name_without_a_stream(chat: Served) -> None:
    url = "/v1/sessions/s/tasks/t/ag-ui"
    async with client(chat) as ann:
        await ann.run("say", run_input("s", "t", "hi"))
        for given in NO_CURSORS:
            raw = given.encode()
            answers = [await ann.http.get(url, headers=[(b"last-event-id", raw)])]
            # The header counts, also beside a good parameter; alone, the parameter does.
            good = {"after": ann.ids[0]}
            answers += [
                await ann.http.get(url, headers=[(b"last-event-id", raw)], params=good),
                await ann.http.get(url, params={"after": given}),
            ]
            for answer in answers:
                assert answer.status_code == 400, (given[:30], answer.text)
                error = answer.json()["error"]
                assert (error["code"], error["field"]) == ("invalid_field", "after")
                assert given not in error["message"] or len(given) < 3
        empty = await ann.http.get(url, params={"after": ""})
        assert empty.status_code == 400
        usage = (await chat.app.services()).usage
        assert usage.streams == 0


async def test_a_caller_with_all_its_streams_open_begins_no_task(store: RedisStateStore) -> None:
    app = create_gateway(
        store, auth=tokens, queue=queue_of(store.settings), limits=GatewayLimits(streams=1)
    )
    async with serving(agent(store.settings, HANDLERS)), client_of(store) as tasks:
        async with client(Served(app, tasks, store)) as ann:
            async with ann.running("wait", run_input("s", "t")) as events:
                await anext(events)
                refused = await ann.http.post("/v1/ag-ui/say", json=run_input("s", "u"))
                assert refused.status_code == 429
                assert await tasks.get("s", "u") is None
            await tasks.signal("s", "t", "go")
        await app.aclose()


@pytest.mark.chaos
async def test_a_killed_worker_leaves_no_half_of_a_text_and_no_event_twice(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
    options: dict[str, Any] = {"program": "chat_worker", "lease_s": 1.0}
    async with client_of(store) as tasks, client(Served(app, tasks, store)) as ann:
        async with (
            worker_process(store.settings, "first", **options) as first,
            ann.running("dictate", run_input("s", "t")) as events,
        ):
            async for event in events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    assert event["delta"] == "of the first "
                    assert await stop(first, signal.SIGKILL) == -signal.SIGKILL
                    break
            async with worker_process(store.settings, "second", **options):
                async for _ in events:
                    pass
        late = await AgUiClient(ann.http).connect("s", "t")
    await app.aclose()
    assert ann.kinds().count("MESSAGES_SNAPSHOT") == 1
    assert list(ann.text().values()) == ["of the second run"]
    assert ann.of("MESSAGES_SNAPSHOT")[0]["messages"][0]["role"] == "user"
    assert late.text() == ann.text()


async def test_an_agent_of_pydantic_ai_shows_its_tools_and_its_text(
    store: RedisStateStore,
) -> None:
    pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")
    from pydantic_ai import Agent  # noqa: PLC0415 - an extra
    from pydantic_ai.models.test import TestModel  # noqa: PLC0415 - an extra

    from redis_state.integrations.pydantic_ai import (  # noqa: PLC0415 - an extra
        RedisStateDurability,
        publish_events,
        pydantic_handlers,
    )

    publishing = RedisStateDurability[Any](event_stream_handler=publish_events)
    model: Any = Agent(TestModel(), name="helper", capabilities=[publishing])

    async def weather(city: str) -> str:
        """Tell the weather."""
        return f"sun in {city}"

    model.tool_plain(weather)
    app = create_gateway(store, auth=tokens, queue=queue_of(store.settings))
    async with serving(agent(store.settings, pydantic_handlers(model))), client_of(store) as tasks:
        async with client(Served(app, tasks, store)) as ann:
            body = run_input("s", "t", "how is it?")
            await ann.run("helper", body, params={"input": "text"})
        await app.aclose()
    assert [each["toolCallName"] for each in ann.of("TOOL_CALL_START")] == ["weather"]
    (result,) = ann.of("TOOL_CALL_RESULT")
    assert result["content"].startswith("sun in")
    (text,) = ann.text().values()
    assert "sun in" in text
    assert ann.events[-1]["result"] == text
