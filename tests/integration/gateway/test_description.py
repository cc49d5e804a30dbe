"""The description that is served: calls made from it get answers as it says, whatever they say.

And so do right calls for what is there: tasks of each kind, their pauses, steps and updates.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast
from urllib.parse import quote

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("schemathesis", reason="needs schemathesis")

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from redis_state import RedisStateStore, Settings
from redis_state.gateway import GatewayLimits, Public, create_gateway
from redis_state.gateway.app import OPERATIONS
from redis_state.gateway.openapi import describe
from redis_state.worker import Rate, Schedule, TaskClient
from tests.support.http.gateway import BASE, HANDLERS, Served, ends, links, paused
from tests.support.processes.pools import agent, client_of, queue_of
from tests.support.servers.choice import Admin
from tests.support.sizes import sizes

# What has no end, and what is not for programs.
LEFT_OUT = {"stream_events", "show_hook", "run_agent", "connect_run", "chat", "resume_chat"}
# Who calls is the subject of other tests: here everybody is let in.
DESCRIBED: dict[str, Any] = describe(OPERATIONS, version="0") | {"security": []}
# Read here, once for all processes of xdist, which are forked behind this.
SCHEMA: Any = schemathesis.openapi.from_dict(DESCRIBED)
# No schema says all that a call needs: one of two fields, a cursor of this listing.
EXCLUDED: Any = [cast("Any", checks).positive_data_acceptance]
# The suite has room for calls that are right; `make test-full` makes wrong ones too.
MARKS: dict[GenerationMode, Any] = {
    GenerationMode.POSITIVE: (),
    GenerationMode.NEGATIVE: pytest.mark.full,
}
CALLS = [
    pytest.param(each.name, mode, id=f"{each.name}-{mode.value}", marks=MARKS[mode])
    for each in OPERATIONS
    for mode in GenerationMode
    if each.name not in LEFT_OUT
    # Without parameters nothing can be wrong.
    if mode is GenerationMode.POSITIVE or each.query or each.body
]
# Calls that change something have these tasks, so that nothing is missing to those that read.
KEPT, DRAWN = "kept", "drawn"
TASKS = (
    *("publish", "fail", "parent", "rerun", "forked", "decided"),
    *("ask", "fill_in", "vote", "decide-me", "link-me", "cancel-me", "cancelled", "later"),
)
ASKING = ("ask", "fill_in", "vote", "decided", "decide-me", "link-me", "cancel-me", "cancelled")
OF_ONE: dict[str, tuple[str, ...]] = {
    "cancel_task": ("cancel-me",),
    "retry_task": ("fail",),
    "steer_task": ("ask",),
    "signal_task": ("ask",),
    "request_task": ("ask",),
    "rerun_task": ("publish", "fail"),
    "fork_task": ("publish",),
    "read_value": ("publish",),
    "read_snapshot": ("publish", "rerun", "forked"),
    "read_pause": ("ask", "fill_in", "vote", "decided"),
    "decide_pause": ("decide-me",),
    "delegate_pause": ("vote",),
    "decide_hook": ("link-me",),
}
# What a call takes away, or ends, is in a session of its own.
APART = {"forget_session": "forget", "stop_chat": "chat"}
LIMITS = {"running": 2, "rate": {"limit": 1, "per_s": 1}}
BODIES: dict[str, Any] = {
    "submit_task": {"handler": "later", "session_id": "made", "attributes": {"a": True}},
    "debounce_task": {"handler": "later", "session_id": "made", "wait_s": 60},
    "batch_item": {"handler": "later", "session_id": "made", "after_s": 60},
    "steer_task": {"type": "USER_MESSAGE", "payload": {"text": "x"}},
    "signal_task": {"name": "n", "payload": [1, None]},
    "request_task": {"name": "n", "wait_s": 0},
    "change_all": {"action": "retry", "filter": {"session_id": "bulk-kept"}, "dry_run": False},
    "decide_pause": {"approved": True, "value": {"a": 1}},
    "decide_hook": {"approved": True},
    "delegate_pause": {"to": "bob"},
    "forget_user": {"user": "nobody"},
    "limit_queue": LIMITS | {"per_key": 1},
    "limit_key": LIMITS,
    "set_rate": {"rate": LIMITS["rate"]},
    "save_schedule": {"schedule_id": "n", "handler": "later", "session_id": "n", "every_s": 60},
    "backfill_schedule": {
        "since": "2026-01-01T00:00Z",
        "until": "2026-01-03T00:00Z",
        "dry_run": True,
    },
}
EMPTY = {each.name for each in OPERATIONS if each.body is not None} - BODIES.keys()
QUERIES: dict[str, list[dict[str, Any]]] = {
    "find_tasks": [{}, {"session_id": KEPT, "status": ["FAILED", "PAUSED"]}],
    "list_pauses": [{}, {"session_id": KEPT, "mine": "true"}],
    "list_sessions": [{}, {"limit": "1"}],
    "list_schedules": [{}, {"limit": "1"}],
    "list_workers": [{}, {"limit": "1"}],
    "read_timeline": [{}, {"limit": "1"}],
    "forget_session": [{"dry_run": "true"}, {}],
}


class Fuzzed:
    """A gateway without limits, its pool, and what is there; called from plain functions."""

    def __init__(
        self, settings: Settings, runner: asyncio.Runner, *, is_empty: bool = False
    ) -> None:
        self._runner = runner
        self.store = RedisStateStore(settings)
        self._app = create_gateway(
            self.store,
            auth=Public(subject="ann", scopes=["admin:*"]),
            hooks=links,
            queue=queue_of(settings),
            limits=GatewayLimits(requests_per_s=None),
        )
        self._pauses: dict[tuple[str, str], str] = {}
        self._serving = runner.run(self._serve())
        if not is_empty:
            runner.run(self._plant())

    def call(self, case: Any) -> httpx.Response:
        """Send a call as it would be written to a socket."""
        wanted = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
        return self._runner.run(self._call(wanted))

    def run(self, work: Any) -> Any:
        """Run a coroutine in the loop of the gateway."""
        return self._runner.run(work)

    def places(self, name: str, path: str, session: str) -> list[dict[str, str]]:
        """Return the values of a path's places: of each task that the call is about."""
        named = {
            "session": f"{APART[name]}-{session}" if name in APART else session,
            "handler": "ask",
            "version": "1",
            "key": "k",
            "queue": "q",
            "limit_key": "a/b",
            "rate": "r",
            "schedule": "none" if name == "delete_schedule" else session,
        }
        found: list[dict[str, str]] = []
        for task in OF_ONE.get(name, TASKS):
            pause = self._pauses.get((session, task), "")
            link = links.mint(pause, actor="bob") if pause else ""
            all_named = named | {"task": task, "pause": pause, "link": link}
            places = {each: quote(all_named[each], safe="") for each in all_named}
            found.append({each: at for each, at in places.items() if f"{{{each}}}" in path})
        return [each for at, each in enumerate(found) if each not in found[:at]]

    async def _call(self, wanted: requests.PreparedRequest) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app)) as http:
            return await http.request(
                str(wanted.method),
                str(wanted.url),
                headers={name: str(value) for name, value in wanted.headers.items()},
                content=cast("Any", wanted.body),
            )

    async def _serve(self) -> asyncio.Task[None]:
        worker = agent(self.store.settings, HANDLERS)
        return asyncio.create_task(worker.serve(handle_signals=False))

    async def _plant(self) -> None:
        """Make tasks of each kind, twice, and what else there may be."""
        async with client_of(self.store) as client:
            served = Served(self._app, client, self.store)
            await asyncio.gather(*(self._plant_tasks(served, each) for each in (KEPT, DRAWN)))
            await client.queues.limit("q", running=3, per_key=1, rate=Rate(1, timedelta(1)))
            await client.queues.limit_key("q", "a/b", running=1)
            await client.rates.set("r", Rate(5, timedelta(seconds=1)))

    async def _plant_tasks(self, served: Served, session: str) -> None:
        client = served.client
        about: dict[str, Any] = {"session_id": session, "trace_id": "tr", "description": "é"}
        for task in ("publish", "fail", "parent", *ASKING):
            handler = task if task in HANDLERS else "ask"
            more: dict[str, Any] = {"attributes": {"n": 1, "paid": False}, "task_id": task}
            await client.submit(handler, {"é": [1, None]}, **about, **more)
        late: dict[str, Any] = {"delay": timedelta(hours=1), "task_id": "later"}
        await client.submit("later", **about, **late, queue="q", limit_key="a/b")
        for task in ASKING:
            self._pauses[session, task] = await paused(served, session, task)
        for task in ("publish", "fail", "parent"):
            await ends(served, session, task)
        await client.approve(self._pauses[session, "decided"], {"é": 1}, actor="bob")
        await client.cancel(session, "cancelled", reason="enough")
        await client.retry(session, "fail")
        await client.rerun(session, "publish", new_task_id="rerun")
        await client.fork(session, "publish", before="checkpoint", new_task_id="forked")
        for task in ("fail", "rerun", "forked", "decided", "cancelled"):
            await ends(served, session, task)
        for apart, handler in (("forget", "publish"), ("bulk", "fail"), ("chat", "ask")):
            await client.submit(handler, session_id=f"{apart}-{session}", task_id="t")
        await ends(served, f"bulk-{session}", "t")
        await paused(served, f"chat-{session}", "t")
        await self._plant_schedule(client, session)

    async def _plant_schedule(self, client: TaskClient, session: str) -> None:
        schedule = Schedule(
            schedule_id=session,
            handler="echo",
            session_id="scheduled-{date}",
            cron="0 3 * * *",
            timezone="Europe/Berlin",
            attributes={"n": 1},
        )
        await client.schedules.save(schedule)
        made = await client.schedules.trigger(session)
        await client.wait(made.session_id, made.task_id, timeout_s=30)

    def close(self) -> None:
        """Close the gateway, its pool and its store."""
        self._runner.run(self._end())

    async def _end(self) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        await self._app.aclose()
        await self.store.aclose()


@pytest.fixture(scope="module")
def fuzzed(defaults: Settings, admin: Admin) -> Iterator[Fuzzed]:
    """Give a gateway in a namespace of this module."""
    own = defaults.model_copy(update={"namespace": "t-described"})
    if admin.has_users:
        admin.let_in(own)
    with asyncio.Runner() as runner:
        opened = Fuzzed(own, runner)
        yield opened
        opened.close()
    leaked = admin.keys_without_lifetime(own.namespace)
    admin.clear()
    assert not leaked


def test_streams_that_are_read_on_by_a_header_name_it() -> None:
    described = describe(OPERATIONS, version="0")["paths"].values()
    named = {
        operation["operationId"]
        for path in described
        for operation in path.values()
        if any(each["name"] == "Last-Event-ID" for each in operation["parameters"])
    }
    assert named == {"stream_events", "connect_run"}


def test_every_name_of_an_operation_is_one() -> None:
    names = [each.name for each in OPERATIONS]
    assert len(set(names)) == len(names)
    assert json.dumps(DESCRIBED)


@pytest.mark.parametrize("name", [each.name for each in OPERATIONS if each.name not in LEFT_OUT])
def test_what_is_there_is_answered_as_described(fuzzed: Fuzzed, admin: Admin, name: str) -> None:
    _skip_without_rights(admin, name)
    if name == "metrics":
        pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    operation, given = SCHEMA.find_operation_by_id(name), dict[str, Any]()
    if name in BODIES or name in EMPTY:
        given = {"body": BODIES.get(name, {}), "media_type": "application/json"}
    for places in fuzzed.places(name, operation.path, KEPT):
        for query in QUERIES.get(name, [{}]):
            case = operation.Case(path_parameters=places, query=query, **given)
            response = fuzzed.call(case)
            case.validate_response(response, excluded_checks=EXCLUDED)
            assert response.is_success, (places, query, response.text)


@pytest.mark.parametrize("examples", sizes(2, 60))
@pytest.mark.parametrize(("name", "mode"), CALLS)
def test_calls_made_from_the_description_are_answered_as_it_says(
    fuzzed: Fuzzed, admin: Admin, name: str, mode: GenerationMode, examples: int
) -> None:
    _skip_without_rights(admin, name)
    operation = SCHEMA.find_operation_by_id(name)

    @given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis_settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def check(case: Any) -> None:
        # A wrong call stays as it was made. A right one is about each thing that is there.
        if mode is GenerationMode.NEGATIVE:
            listed = [case.path_parameters]
        else:
            made_up = case.path_parameters
            planted = fuzzed.places(name, operation.path, DRAWN)
            listed = [made_up, *(each for each in planted if each != made_up)]
            _hold(name, case.body)
        for places in listed:
            case.path_parameters = places
            response = fuzzed.call(case)
            assert response.status_code < 500, response.text
            case.validate_response(response, excluded_checks=EXCLUDED)

    check()


def _skip_without_rights(admin: Admin, name: str) -> None:
    if admin.has_users and name.startswith("forget"):
        pytest.skip("an erasure reads the names of all keys")


def _hold(name: str, body: Any) -> None:
    """Keep a call from waiting, and from what the others need."""
    if name == "request_task":
        body["wait_s"] = 0
    if name == "change_all":
        body["filter"]["session_id"] = f"bulk-{DRAWN}"
