"""A model's fields are written like the model itself, whichever way they are taken."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    computed_field,
    field_serializer,
    model_serializer,
)

from redis_state.models import TaskContextSnapshot
from redis_state.serialization.codec import decode, encode, fields_of
from redis_state.serialization.model_fields import moment_text

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    at: datetime = MOMENT
    held: Any = None


class Plain(BaseModel):
    name: str = "x"
    note: str | None = None
    at: datetime = MOMENT
    some: dict[str, Any] = Field(default_factory=dict[str, Any])
    anything: Any = None

    @cached_property
    def looked_up(self) -> str:
        return "not a field"


class Open(Plain):
    model_config = ConfigDict(extra="allow")


class WithEnum(Plain):
    colour: Colour = Colour.RED


class Without(Plain):
    secret: str = Field(default="s", exclude=True)


class Rounded(Plain):
    price: Annotated[float, PlainSerializer(round)] = 1.5


class OwnField(Plain):
    @field_serializer("name")
    def shout(self, value: str) -> str:
        return value.upper()


class OwnWhole(Plain):
    @model_serializer
    def short(self) -> dict[str, Any]:
        return {"n": self.name}


class OwnText(Plain):
    @model_serializer
    def short(self) -> str:
        return self.name


class Computed(Plain):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> str:
        return self.name * 2


class OwnDump(Plain):
    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"dumped": True}


class Listed(RootModel[list[int]]):
    pass


def looked_up() -> Plain:
    model = Plain()
    assert model.looked_up
    return model


MODELS: list[BaseModel] = [
    Plain(some={"a": None, "at": MOMENT, "in": Inner(held={1, 2})}, anything=(1, Inner())),
    Plain(anything=MOMENT),
    looked_up(),
    Plain.model_construct(name="half made"),
    Open.model_validate({"more": 1, "at": MOMENT}),
    WithEnum(),
    Without(),
    Rounded(),
    OwnField(),
    OwnWhole(),
    OwnText(),
    Computed(),
    OwnDump(),
    Listed([1, 2]),
    TaskContextSnapshot(session_id="s", task_id="t", llm_context={"nan": math.nan, "none": None}),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_fields_are_written_like_their_model(model: BaseModel) -> None:
    assert decode(encode(fields_of(model))) == decode(encode(model))


def test_taking_the_fields_leaves_the_model_alone() -> None:
    model = Plain(some={"at": MOMENT})
    fields_of(model)["name"] = "another"
    assert (model.name, model.at, model.some) == ("x", MOMENT, {"at": MOMENT})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ([None, math.nan], b'[null,"NaN"]'),
        ([None, {"a": None, "b": math.nan}], b'[null,{"a":null,"b":"NaN"}]'),
        ([None, {"a": None}, "null"], b'[null,{"a":null},"null"]'),
        (["null", math.nan], b'["null","NaN"]'),
        ([[None], math.nan], b'[[null],"NaN"]'),
        ({"a": None, "b": {"c": None, "d": math.inf}}, b'{"a":null,"b":{"c":null,"d":"Infinity"}}'),
        (None, b"null"),
    ],
)
def test_a_hidden_number_is_found_among_null(value: Any, written: bytes) -> None:
    assert encode(value) == written


class Frozen(datetime):
    """As clocks of tests make them."""


@pytest.mark.parametrize("kind", [datetime, Frozen])
@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=5, seconds=7))])
@pytest.mark.parametrize(
    "parts", [(1, 1, 1), (999, 12, 31, 23, 59, 59, 999999), (2026, 1, 2, 3, 4, 5, 0)]
)
def test_a_moment_is_written_as_isoformat_has_it(
    kind: type[datetime], zone: timezone | None, parts: tuple[int, ...]
) -> None:
    moment = kind(*parts, tzinfo=zone)  # type: ignore[arg-type, misc]
    assert moment_text(moment) == moment.isoformat()
    assert moment_text(moment.replace(fold=1)) == moment.isoformat()
