"""The description that is served: calls made from it get answers as it says, whatever they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

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
from tests.support.http.gateway import BASE, links
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


class Fuzzed:
    """A gateway without limits, called from tests that are no coroutines."""

    def __init__(self, settings: Settings, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._store = RedisStateStore(settings)
        self._app = create_gateway(
            self._store,
            auth=Public(subject="ann", scopes=["admin:*"]),
            hooks=links,
            limits=GatewayLimits(requests_per_s=None),
        )

    def call(self, case: Any) -> httpx.Response:
        """Send a call as it would be written to a socket."""
        wanted = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
        return self._runner.run(self._call(wanted))

    async def _call(self, wanted: requests.PreparedRequest) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app)) as http:
            return await http.request(
                str(wanted.method),
                str(wanted.url),
                headers={name: str(value) for name, value in wanted.headers.items()},
                content=cast("Any", wanted.body),
            )

    def close(self) -> None:
        """Close the gateway and its store."""
        self._runner.run(self._app.aclose())
        self._runner.run(self._store.aclose())


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


def test_every_name_of_an_operation_is_one() -> None:
    names = [each.name for each in OPERATIONS]
    assert len(set(names)) == len(names)
    assert json.dumps(DESCRIBED)


@pytest.mark.parametrize("examples", sizes(2, 60))
@pytest.mark.parametrize(("name", "mode"), CALLS)
def test_calls_made_from_the_description_are_answered_as_it_says(
    fuzzed: Fuzzed, name: str, mode: GenerationMode, examples: int
) -> None:
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
        response = fuzzed.call(case)
        assert response.status_code < 500, response.text
        case.validate_response(response, excluded_checks=EXCLUDED)

    check()
