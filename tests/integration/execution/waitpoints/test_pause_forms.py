"""Pauses with a form: a value that does not fit decides nothing, one that fits comes back typed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("jsonschema", reason="needs the forms extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    ConfigError,
    CorruptState,
    InvalidDecision,
    InvalidField,
    TokenResolved,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.waitpoints.forms import (
    MAX_SCHEMA_BYTES,
    PauseForm,
    check_value,
    form_value,
)
from tests.support.processes.pools import SESSION, becomes, open_token, pool, updates_of

SECRET = "s3cret-value"
HOUR = timedelta(hours=1)


class Refund(BaseModel):
    """What a person fills in."""

    limit: int = Field(ge=1, le=1000)
    until: datetime | None = None


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    upper: int = Field(alias="upperLimit")


@dataclass
class Point:
    x: int
    y: Decimal


def even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


Even = Annotated[int, AfterValidator(even)]
LIMIT = {
    "type": "object",
    "properties": {"limit": {"type": "integer", "maximum": 9}},
    "required": ["limit"],
    "additionalProperties": False,
}


async def left_open(client: TaskClient, task: str, token: str) -> None:
    """Check that nothing was written: neither a decision nor an update."""
    assert [pause.pause_id for pause in await client.pauses(SESSION)] == [token]
    kinds = [update.update_type.value for update in await updates_of(client.store, task)]
    assert kinds == ["STATUS_CHANGE"] * 2 + ["CHECKPOINT", "STATUS_CHANGE"]
    assert await client.store.list_steering(SESSION, task_id=task) == []


async def test_a_value_that_does_not_fit_leaves_the_pause_open(store: RedisStateStore) -> None:
    seen: list[Any] = []

    async def refund(ctx: TaskContext) -> dict[str, Any]:
        decision = await ctx.approval("How much?", schema=Refund)
        seen.append(decision.value)
        await ctx.pause("again", name="again")
        assert isinstance(decision.value, Refund)
        return {"limit": decision.value.limit, "until": decision.value.until}

    async with pool(store, {"refund": refund}) as client:
        task = await client.submit("refund", session_id=SESSION)
        token = await open_token(store, task)
        wrong = {"limit": 5000, "until": SECRET}
        for call in (
            client.approve(token, wrong),
            client.resolve(token, approved=True, value=wrong, idempotency_key="k"),
            client.steer(
                SESSION,
                task,
                SteeringEventType.APPROVE,
                {"resume_token": token, "value": wrong},
            ),
        ):
            with pytest.raises(InvalidDecision) as caught:
                await call
            assert caught.value.errors == [
                ("$.limit", "maximum 1000"),
                ("$.until", "format date-time"),
            ]
            assert (caught.value.path, caught.value.rule) == ("$.limit", "maximum 1000")
            assert SECRET not in str(caught.value) + repr(caught.value.__context__)
            assert "5000" not in str(caught.value)
        await left_open(client, task, token)
        fits = {"limit": 3, "until": "2026-11-24T10:00:00Z"}
        await client.approve(token, fits, actor="ann", idempotency_key="k")
        await client.approve(token, fits, actor="ann", idempotency_key="k")
        with pytest.raises(TokenResolved):
            await client.approve(token, wrong)
        await client.approve(await open_token(store, task, after=1))
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == {"limit": 3, "until": "2026-11-24T10:00:00+00:00"}
        # The run after the decision, and a replay.
        until = datetime(2026, 11, 24, 10, tzinfo=UTC)
        assert seen == [Refund(limit=3, until=until)] * 2


async def test_a_rejection_may_have_any_value(store: RedisStateStore) -> None:
    async def refund(ctx: TaskContext) -> list[Any]:
        pause = await ctx.open_pause("refund", schema=Refund)
        decision = await ctx.wait_for(pause)
        return [decision.approved, decision.value]

    async with pool(store, {"refund": refund}) as client:
        task = await client.submit("refund", session_id=SESSION)
        await client.reject(await open_token(store, task), "too late")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [False, "too late"]


async def test_anybody_can_show_the_form_of_an_open_pause(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> Any:
        pauses = [
            await ctx.open_pause("dict", schema=LIMIT),
            await ctx.open_pause("type", schema=Refund),
            await ctx.open_pause("none"),
        ]
        return [(await ctx.wait_for(pause)).value for pause in pauses[:1]]

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        schemas = {pause.name: pause.schema for pause in await client.pauses()}
        assert schemas == {"dict": LIMIT, "type": Refund.model_json_schema(), "none": None}
        reported = {
            update.content["pause"]: update.content.get("schema")
            for update in await updates_of(store, task)
            if update.update_type.value == "CHECKPOINT"
        }
        assert reported == schemas
        assert await client.cancel(SESSION, task)


async def test_rules_that_no_schema_says_reach_the_handler(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> list[Any]:
        try:
            found = await ctx.pause("even", schema=Even)
        except InvalidDecision as error:
            again = await ctx.pause("again", schema=Even)
            return [error.errors, again.value]
        return [found.value]

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await client.approve(await open_token(store, task), 3)
        await client.approve(await open_token(store, task, after=1), 4)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.error, ended.result) == (None, [[["$", "value_error"]], 4])


async def test_the_first_form_stands_and_a_default_must_fit(store: RedisStateStore) -> None:
    texts: dict[str, Any] = {"type": "string"}

    async def ask(ctx: TaskContext) -> Any:
        # A later version of the handler asks for something else.
        schema = texts if ctx.attempt == 1 else {"type": ["string", "integer"]}
        return (await ctx.pause("which", schema=schema)).value

    async def brief(ctx: TaskContext) -> str:
        default = {"limit": ctx.input}
        options: Any = {"on_timeout": "resume", "timeout": timedelta(milliseconds=1)}
        pause = await ctx.open_pause("brief", schema=Refund, default=default, **options)
        await asyncio.sleep(0.01)
        value = (await ctx.wait_for(pause)).value
        assert isinstance(value, Refund)
        return f"limit {value.limit}"

    async with pool(store, {"ask": ask, "brief": brief}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        with pytest.raises(InvalidDecision):
            await client.approve(token, 5)
        await client.approve(token, "five")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "five"
        task = await client.submit("brief", 7, session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "limit 7"
        task = await client.submit("brief", 0, session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error is not None
        assert "default: does not fit the schema: $.limit: greater_than_equal" in ended.error


FITTING: list[tuple[Any, Any, Any]] = [
    (Refund, Refund(limit=2), Refund(limit=2)),
    (Named, Named.model_validate({"upperLimit": 3}), Named.model_validate({"upperLimit": 3})),
    (Point, {"x": 1, "y": "2.50"}, Point(1, Decimal("2.50"))),
    (Point, Point(1, Decimal("2.5")), Point(1, Decimal("2.5"))),
    (int | None, None, None),
    (Annotated[str, Field(pattern="^a+$")], "aaa", "aaa"),
    (Annotated[int, {"any": "thing"}], 5, 5),
    (timedelta, "PT5M", timedelta(minutes=5)),
    (bytes, b"abc", b"abc"),
    (dict[str, int], {"": 2**70}, {"": 2**70}),
    (str, "\ud800", "\ud800"),
    (Any, [1, {"a": None}], [1, {"a": None}]),
    ({}, "anything", "anything"),
    ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]], [[], [[]]]),
    ({"properties": {"$ref": {"type": "integer"}}}, {"$ref": 1}, {"$ref": 1}),
    ({"format": "e-mail of our own"}, "any", "any"),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema#"}, 1, 1),
]


class Scan(BaseModel):
    """What it holds may be no text, and then pydantic has no form of it in JSON."""

    raw: bytes


def test_a_model_that_pydantic_cannot_write_as_json_is_stored_like_any_other_value() -> None:
    assert form_value(Scan(raw=b"abc")) == {"raw": "abc"}
    assert form_value(Scan(raw=b"\xff")) == {"raw": "/w=="}


@pytest.mark.parametrize(("schema", "value", "typed"), FITTING)
def test_values_that_fit_come_back_as_the_type(schema: Any, value: Any, typed: Any) -> None:
    form = PauseForm.read(schema)
    stored = form_value(value)
    check_value(form.schema, stored)
    assert form.typed(stored) == typed
    assert type(form.typed(stored)) is type(typed)


@pytest.mark.parametrize(
    ("schema", "value", "rules"),
    [
        (LIMIT, {}, [("$.limit", "required")]),
        (LIMIT, None, [("$", "type object")]),
        # A name that only the value has is not named.
        (LIMIT, {"limit": 1, SECRET: 1}, [("$", "additionalProperties")]),
        ({"additionalProperties": {"type": "null"}}, {SECRET: 1}, [("$.*", "type null")]),
        ({"const": SECRET}, 1, [("$", "const")]),
        ({"enum": [SECRET]}, 1, [("$", "enum")]),
        ({"items": {"minimum": 3}}, [4, 2, 1], [("$[1]", "minimum 3"), ("$[2]", "minimum 3")]),
        ({"not": {}}, 1, [("$", "not")]),
        ({"items": False}, [1], [("$", "items")]),
        ({"properties": {"a": False}}, {"a": 1}, [("$", "False")]),
        ({"x": {"$ref": 5}, "minimum": 2}, 1, [("$", "minimum 2")]),
        ({"multipleOf": 0.1}, 10**400, [("$", "cannot be checked")]),
        ({"type": "number"}, float("nan"), [("$", "type number")]),
        ({"format": "date"}, "2026-1-1", [("$", "format date")]),
        ({"format": "date"}, "20260101", [("$", "format date")]),
        ({"format": "date-time"}, "2026-01-01", [("$", "format date-time")]),
        ({"format": "time"}, "25:00", [("$", "format time")]),
        ({"format": "duration"}, "P", [("$", "format duration")]),
        ({"format": "email"}, "ann", [("$", "format email")]),
        ({"format": "ipv4"}, "1.2.3", [("$", "format ipv4")]),
        ({"format": "ipv6"}, "1.2.3.4", [("$", "format ipv6")]),
        ({"format": "uuid"}, "x", [("$", "format uuid")]),
        ({"format": "uri"}, "no scheme", [("$", "format uri")]),
        ({"format": "regex"}, "(", [("$", "format regex")]),
    ],
)
def test_an_error_names_the_path_and_the_rule_and_no_value(
    schema: Any, value: Any, rules: list[tuple[str, str]]
) -> None:
    form = PauseForm.read(schema)
    with pytest.raises(InvalidDecision) as caught:
        check_value(form.schema, form_value(value))
    assert caught.value.errors == rules
    assert SECRET not in str(caught.value)


def test_what_is_stored_of_a_value_is_checked() -> None:
    # A default that a handler gives, for one. NaN is above no maximum, and is stored as text.
    for schema in ({"type": "number", "maximum": 1}, {"type": ["number", "null"], "maximum": 1}):
        with pytest.raises(InvalidDecision):
            PauseForm.read(schema).typed(float("nan"))
    assert PauseForm.read({"type": "array"}).typed((1, 2)) == (1, 2)


def test_an_error_has_ten_rules_at_most() -> None:
    with pytest.raises(InvalidDecision) as caught:
        check_value({"items": {"type": "null"}}, list(range(1000)))
    assert len(caught.value.errors) == 10


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


UNUSABLE: list[Any] = [
    deep(200),
    "int",
    True,
    5,
    [1],
    even,
    Callable[[], int],
    {"type": "integr"},
    {"$schema": "http://json-schema.org/draft-07/schema#"},
    {"$schema": 5},
    {"$ref": "#"},
    {"$ref": 5},
    {"$ref": "#/$defs/none"},
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/type"}}},
    {"allOf": [{}], "properties": {"a": {"$ref": "#/allOf"}}},
    {"allOf": [{}], "properties": {"a": {"$ref": "#/allOf/x"}}},
    {"default": {"$ref": "other"}, "properties": {"a": {"$ref": "#/default"}}},
    {"x": {"type": "integr"}, "properties": {"a": {"$ref": "#/x"}}},
    {"$ref": "https://example.com/schema"},
    {"properties": {"a": {"$dynamicRef": "other.json"}}},
    {"$defs": {"a": {"$id": "b"}}},
    {"pattern": "("},
    {"patternProperties": {"(": {}}},
    Annotated[str, Field(pattern=r"\p{L}+")],
    {"title": "x" * MAX_SCHEMA_BYTES},
    {1: 2, "minimum": float("nan")},
]


@pytest.mark.parametrize("schema", UNUSABLE)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        PauseForm.read(schema)
    assert caught.value.field == "schema"


async def test_a_wrong_schema_is_refused_where_it_is_opened(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> str:
        refused: list[str] = []
        for opening in (ctx.open_pause, ctx.pause, ctx.approval):
            try:
                await opening("which", schema={"type": "integr"})
            except InvalidField as error:
                refused.append(error.field)
        return ",".join(refused)

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == "schema,schema,schema"
        assert await client.pauses() == []


async def test_a_client_without_the_library_refuses(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(ctx: TaskContext) -> Any:
        return (await ctx.pause("which", schema=int)).value

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "jsonschema", None)
            with pytest.raises(ConfigError, match=r"pip install 'redis_state\[forms\]'"):
                await client.approve(token, 5)
            with pytest.raises(ConfigError, match="jsonschema"):
                PauseForm.read({"type": "object", "title": "of this test"})
        await left_open(client, task, token)
        await client.approve(token, 5)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 5


async def test_a_form_that_cannot_be_read_is_not_taken_for_none(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> Any:
        return (await ctx.pause("which", schema=int)).value

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        key = store.base.keys.session_token(token)
        assert key is not None
        await store.transport.sender.send("HSET", key, "schema", b"{", repeatable=True)
        with pytest.raises(CorruptState):
            await client.approve(token, 5)
        assert await client.pauses() == []
        assert await client.cancel(SESSION, task)
