"""What something is called by is not empty. An id may be any text, also the empty one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_type_hints

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import ConfigError, CursorGap, InvalidField, NotFound
from redis_state.models import SteeringEventType
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, Queues, Rate, Rates, Schedule, Schedules, TaskClient
from redis_state.worker.client.gathering import GatherOptions
from redis_state.worker.tasks.submitting.submissions import SubmitOptions
from redis_state.worker.tasks.views.task_filter import TaskFilters
from tests.support.processes.pools import SESSION, client_of
from tests.support.servers.sets.nodes import keys_like

OWNERS: Final = {"": TaskClient, "queues.": Queues, "rates.": Rates, "schedules.": Schedules}
OPTIONS: Final = {
    "submit_or_find": SubmitOptions,
    "debounce": GatherOptions,
    "batch": GatherOptions,
    "find": TaskFilters,
    "bulk": TaskFilters,
}
A_RATE = Rate(1, timedelta(seconds=1))
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
# What calls need besides the name that is tried.
NEEDED: Final[dict[str, Any]] = {
    "handler": "h",
    "session_id": SESSION,
    "task_id": "t",
    "name": "n",
    "key": "k",
    "schedule_id": "hourly",
    "limit_key": "k",
    "token": "t",
    "to": "bob",
    "actor": "ann",
    "item": 1,
    "event_type": SteeringEventType.USER_MESSAGE,
    "action": "retry",
    "rate": A_RATE,
    "wait": timedelta(hours=1),
    "after": timedelta(hours=1),
    "user": "ann",
    "version": 1,
    "since": MOMENT,
    "until": MOMENT + timedelta(hours=1),
    "approved": True,
}
OF_METHODS: Final[dict[str, dict[str, Any]]] = {
    "steer": {"payload": {"text": "x"}},
    "queues.limit": {"running": 1},
    "queues.limit_key": {"running": 1},
    "value": {"wait": None},
}
# What is no name that a caller chooses for something.
FREE: Final = {
    **dict.fromkeys(("session_id", "new_session_id", "group"), "an id: any text"),
    **dict.fromkeys(("description", "trace_id", "reason"), "text that people read"),
    **dict.fromkeys(("actor", "source", "sender"), "who acts: of the caller's own making"),
    "token": "one that is not known",
    "payload": "no text, but an object of it",
}
# Names by which something is looked up: nothing has this one, so nothing is found or changed.
LOOKED_UP: Final = {
    *("task_id", "before", "tag", "decider", "expected", "watch.after"),
    *("count.handler", "find.handler", "bulk.handler", "versions.handler", "find.status"),
    *("bulk.status", "find.archived", "bulk.idempotency_key", "batch.task_type"),
    *("resolve.idempotency_key", "approve.idempotency_key", "reject.idempotency_key"),
}


def names_of(method: str, function: Callable[..., Any]) -> list[str]:
    """List the parameters and options of a method that may be text."""
    hints = {
        name: str(each.annotation)
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is not each.VAR_KEYWORD
    }
    if method in OPTIONS:
        hints |= {name: str(kind) for name, kind in get_type_hints(OPTIONS[method]).items()}
    return [name for name, hint in hints.items() if "str" in hint]


def places() -> list[tuple[str, str]]:
    """List each method that a client has, with each of its names."""
    return [
        (f"{place}{method}", name)
        for place, owner in OWNERS.items()
        for method, function in inspect.getmembers(owner, inspect.isfunction)
        if not method.startswith("_")
        for name in names_of(method if not place else "", function)
        if (f"{place}{method}", name) != ("schedules.save", "expected")
    ]


async def call(client: TaskClient, method: str, name: str) -> Any:
    """Call a method with an empty name."""
    owner: Any = client
    for part in method.split("."):
        owner = getattr(owner, part)
    needed = {
        each.name: NEEDED[each.name]
        for each in inspect.signature(owner).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    found = owner(**needed | OF_METHODS.get(method, {}) | {name: ""})
    if not inspect.isasyncgen(found):
        return await found
    async with aclosing(found):
        return [each async for each in found]


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    """Give a client of a task that waits, and of a schedule that is paused."""
    async with client_of(store) as client:
        await client.submit("h", session_id=SESSION, task_id="t")
        hourly: Any = {"every": timedelta(hours=1), "handler": "h", "session_id": "hours"}
        await client.schedules.save(Schedule(schedule_id="hourly", **hourly), paused=True)
        yield client


@pytest.mark.parametrize(("method", "name"), places(), ids=str)
async def test_an_empty_name_is_refused_or_finds_nothing(
    store: RedisStateStore, client: TaskClient, method: str, name: str
) -> None:
    if name in FREE:
        return

    async def keys() -> list[bytes]:
        return sorted(await keys_like(store.transport, f"{store.settings.namespace}:*"))

    before = await keys()
    last = method.rpartition(".")[2]
    refused = None
    try:
        await call(client, method, name)
    except InvalidField as error:
        refused = error
    except (NotFound, CursorGap):
        pass
    if not {name, f"{last}.{name}"} & LOOKED_UP:
        field = "queue" if method.startswith("queues.") and name == "name" else name
        assert refused is not None
        assert refused.field in (field, {"attribute": "user"}.get(field))
    assert await keys() == before


async def test_a_worker_and_a_client_have_names_too(store: RedisStateStore) -> None:
    with pytest.raises(InvalidField, match="queue"):
        TaskClient(store, queue="")
    for wrong in ({"handlers": {"": eventually}}, {"queue": ""}, {"queues": ["a", ""]}):
        options: Any = {"handlers": {}, **wrong}
        with pytest.raises(ConfigError, match="each needs a name"):
            AgentWorker(**options)


@pytest.mark.parametrize("name", ["schedule_id", "handler", "session_id", "queue", "limit_key"])
async def test_a_schedule_has_no_empty_name(name: str) -> None:
    whole: Any = {"schedule_id": "s", "handler": "h", "session_id": "s"}
    with pytest.raises(InvalidField, match=name):
        Schedule(**whole | {"every": timedelta(hours=1), name: ""})


async def test_a_schedule_that_an_earlier_version_stored_with_an_empty_queue_is_read() -> None:
    whole: Any = {"schedule_id": "s", "handler": "h", "session_id": "s"}
    schedule = Schedule(**whole, every=timedelta(hours=1))
    document = {**schedule.document(), "queue": ""}
    assert Schedule.read(b"", decode=lambda _: document) == schedule


@pytest.mark.parametrize("wrong", [{"": 1}, {"tenant": {}}])
async def test_an_attribute_has_a_name(client: TaskClient, wrong: Any) -> None:
    with pytest.raises(InvalidField, match="attributes"):
        await client.submit("h", session_id=SESSION, task_id="new", attributes=wrong)
    assert await client.get(SESSION, "new") is None


COMMANDS: Final = (
    ("submit", "h", "--queue", ""),
    ("submit", "", "-s", SESSION),
    ("submit", "h", "--limit-key", ""),
    ("submit", "h", "--id", ""),
    ("submit", "h", "-a", "=x"),
    ("rerun", SESSION, "t", "--id", ""),
    ("fork", SESSION, "t", "--id", ""),
    ("steer", SESSION, "t", "redirect", "on", "--id", ""),
    ("signal", SESSION, "t", ""),
    ("schedules", "create", "s", "h", "s", "--every", "1h", "--queue", ""),
    ("schedules", "create", "", "h", "s", "--every", "1h"),
    ("schedules", "create", "s", "", "s", "--every", "1h"),
    ("schedules", "trigger", "hourly", "--idempotency-key", ""),
    ("queues", "limit", "", "--running", "1"),
    ("rates", "set", "", "1/s"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_a_command_refuses_an_empty_name(
    store: RedisStateStore, client: TaskClient, command: tuple[str, ...]
) -> None:
    pytest.importorskip("typer", reason="needs the cli extra")
    from tests.support.commands import cli  # noqa: PLC0415 - the extra

    pattern = f"{store.settings.namespace}:*"
    before = sorted(await keys_like(store.transport, pattern))
    ran = await cli(client.store.settings, *command)
    assert (ran.status, ran.out) == (2, ""), ran.err
    assert sorted(await keys_like(store.transport, pattern)) == before


async def test_a_request_over_http_refuses_an_empty_name(store: RedisStateStore) -> None:
    pytest.importorskip("starlette", reason="needs the gateway extra")
    from tests.support.http.http_gateway import over_http  # noqa: PLC0415 - the extra

    async with over_http(store) as over:
        wrong: list[dict[str, Any]] = [{"queue": ""}, {"limit_key": ""}, {"attributes": {"": 1}}]
        for options in wrong:
            with pytest.raises(InvalidField, match=next(iter(options))):
                await over.http.submit("h", session_id=SESSION, task_id="new", **options)
        assert await over.direct.get(SESSION, "new") is None
