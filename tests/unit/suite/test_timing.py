"""A bound that a busy machine cannot decide is one that a slow call still breaks."""

from __future__ import annotations

import asyncio
import time

import pytest

from redis_state.testing import eventually
from tests.support.timing import Overdue, spending


@pytest.mark.parametrize("busy_s", [0.0, 0.3], ids=["free", "busy"])
async def test_a_call_with_a_deadline_is_not_overdue_however_long_its_loop_is_busy(
    busy_s: float,
) -> None:
    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        for _ in range(5):
            await asyncio.sleep(0)

    call = asyncio.ensure_future(work())
    late = Overdue(call, 0.15)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, busy_s)
    await call
    behind = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.2, behind.set_result, None)
    await behind
    assert not late.seen


async def test_a_call_that_waits_for_something_else_is_overdue() -> None:
    call = asyncio.get_running_loop().create_future()
    late = Overdue(call, 0.01)
    await eventually(lambda: late.seen, "the call is seen to be overdue")
    call.set_result(None)


async def test_a_stall_of_the_machine_is_not_spent_and_waiting_is() -> None:
    async with spending() as spent:
        time.sleep(0.5)  # noqa: ASYNC251 - the stall
        await asyncio.sleep(0)
    assert spent.s < 0.3
    async with spending() as spent:
        await asyncio.sleep(0.5)
    assert 0 < spent.s <= 0.5
