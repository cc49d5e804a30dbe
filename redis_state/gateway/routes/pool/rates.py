"""Rates that were set in place of those that handlers give."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from starlette.responses import Response

from redis_state.documents import rate_uses_document, rates_document
from redis_state.gateway.answers import answer
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import SetRateBody
from redis_state.gateway.results import RatesResult
from redis_state.primitives.listed import behind_a_write
from redis_state.worker import Rate


async def list_rates(call: ApiCall) -> Response:
    """List the rates that were set, by name, and those that are used now: 100 at most."""
    rates = call.client.rates
    listed, used = await asyncio.gather(rates.list(), rates.in_use())
    return answer({"rates": rates_document(listed), "in_use": rate_uses_document(used)})


async def set_rate(call: ApiCall) -> Response:
    """Set a rate, or take away what was set. It holds for the next take of every process."""
    given = call.given(SetRateBody).rate
    rate = None if given is None else Rate(given.limit, timedelta(seconds=given.per_s))
    await call.client.rates.set(call.path["rate"], rate)
    with behind_a_write(call.store.transport.address):
        return await list_rates(call)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/rates",
        list_rates,
        "List rates",
        over=Over.EVERYTHING,
        result=RatesResult,
        answers=(403,),
    ),
    Operation(
        "POST",
        "/v1/rates/{rate}",
        set_rate,
        "Set a rate",
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        body=SetRateBody,
        result=RatesResult,
        answers=(403, 413),
    ),
)
