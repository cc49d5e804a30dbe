import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from redis_state.timeouts import timeout, timeout_at


async def _after_a_failed_task_group() -> None:
    """Have a task group of this task fail while it waits for its tasks."""

    async def fail() -> None:
        raise ConnectionError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())


async def _until_cancelled(within: AbstractAsyncContextManager[object]) -> None:
    async with within:
        await asyncio.Event().wait()


async def test_timeout_ends_in_its_own_error_after_a_failed_task_group() -> None:
    await _after_a_failed_task_group()
    with pytest.raises(TimeoutError):
        await _until_cancelled(timeout(0))
    with pytest.raises(TimeoutError):
        await _until_cancelled(timeout_at(asyncio.get_running_loop().time()))


async def test_cancellation_from_outside_is_not_taken_for_the_end_of_the_time() -> None:
    entered = asyncio.Event()

    async def limited() -> None:
        await _after_a_failed_task_group()
        async with timeout(60):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_at_the_end_of_the_time_counts() -> None:
    async def limited() -> None:
        await _after_a_failed_task_group()
        async with timeout(0):
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(limited())
    with pytest.raises(asyncio.CancelledError):
        await task
