"""The description that is served: calls made from it get answers as it says, whatever they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("schemathesis", reason="needs schemathesis")

import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from redis_state import RedisStateStore, Settings
from redis_state.gateway import GatewayLimits, Public, create_gateway
from redis_state.gateway.app import OPERATIONS, Gateway
from redis_state.gateway.openapi import describe
from tests.support.gateway import links
from tests.support.sizes import sizes

# What has no end, and what is not for programs.
LEFT_OUT = {"stream_events", "show_hook"}
# Who calls is the subject of other tests: here everybody is let in.
DESCRIBED = describe(OPERATIONS, version="0") | {"security": []}
# No schema says all that a call needs: one of two fields, a cursor of this listing.
EXCLUDED = [positive_data_acceptance]
CALLS = [
    pytest.param(each.name, mode, id=f"{each.name}-{mode.value}")
    for each in OPERATIONS
    for mode in GenerationMode
    if each.name not in LEFT_OUT
    # Without parameters nothing can be wrong.
    if mode is GenerationMode.POSITIVE or each.query or each.body
]


@pytest.fixture(scope="module")
def fuzzed(defaults: Settings, admin: Any) -> Iterator[Gateway]:
    """Give a gateway without limits, in a namespace of this module."""
    own = defaults.model_copy(update={"namespace": "t-described"})
    admin.let_in(own)
    yield create_gateway(
        RedisStateStore(own),
        auth=Public(subject="ann", scopes=["admin:*"]),
        hooks=links,
        limits=GatewayLimits(requests_per_s=None),
    )
    leaked = admin.keys_without_lifetime(own.namespace)
    admin.clear()
    assert not leaked


def test_every_name_of_an_operation_is_one() -> None:
    names = [each.name for each in OPERATIONS]
    assert len(set(names)) == len(names)
    assert json.dumps(DESCRIBED)


@pytest.mark.parametrize("examples", sizes(2, 60))
@pytest.mark.parametrize(("name", "mode"), CALLS)
def test_calls_made_from_the_description_are_answered_as_it_says(
    fuzzed: Gateway, name: str, mode: GenerationMode, examples: int
) -> None:
    schema: Any = schemathesis.openapi.from_dict(DESCRIBED)
    schema.app = fuzzed
    operation = schema.find_operation_by_id(name)

    @given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis_settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def check(case: Any) -> None:
        response = case.call()
        assert response.status_code < 500, response.text
        case.validate_response(response, excluded_checks=EXCLUDED)

    check()
