"""A step that fails is tried again by its policy, and whoever waits for that can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

import stamina
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, InvalidField, LeaseLost
from redis_state.models import SteeringEventType, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import RetryPolicy, StepPolicy, TaskContext, retried
from tests.support.processes.pools import SESSION, becomes, pool, updates_of
from tests.support.tasks.runs import TASK, make, run_once, run_to_the_end, steal

QUICK = RetryPolicy(attempts=4, wait_initial_s=0.001, wait_max_s=0.002, wait_jitter_s=0)
PATIENT = RetryPolicy(attempts=3, wait_initial_s=3600, wait_max_s=3600, timeout_s=None)


class Failing:
    """Work that raises its errors one after another, then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.tried = 0

    def __call__(self) -> str:
        self.tried += 1
        if self.errors:
            raise self.errors.pop(0)
        return "ok"


def one_step(work: Callable[[], Any]) -> Callable[[TaskContext], Any]:
    async def handler(ctx: TaskContext) -> Any:
        return await ctx.step("work", work)

    return handler


async def notices(store: RedisStateStore, task: str = TASK) -> list[Any]:
    return [
        update.content
        for update in await updates_of(store, task)
        if update.update_type is UpdateType.NOTIFICATION
    ]


async def test_a_step_is_tried_until_it_succeeds_and_each_failure_is_told_without_its_text(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    work = Failing(ConnectionError("s3cret"), TimeoutError("s3cret"))
    ended = await run_to_the_end(store, one_step(retried(work, QUICK)))
    assert (ended.result, work.tried) == ("ok", 3)
    reported = {"notice": "attempt_failed", "entry": "step:work#1", "of": 4}
    assert await notices(store) == [
        reported | {"attempt": 1, "error": "ConnectionError"},
        reported | {"attempt": 2, "error": "TimeoutError"},
    ]
    assert "'step:work#1' of task 't': attempt 2 of 4: TimeoutError" in caplog.text
    assert "s3cret" not in caplog.text


async def test_after_the_last_attempt_the_works_own_error_reaches_the_handler(
    store: RedisStateStore,
) -> None:
    last = ValueError("the fourth")
    work = Failing(*(ValueError(f"{n}") for n in range(3)), last)
    caught: list[BaseException] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            return await ctx.step("work", retried(work, QUICK))
        except ValueError as error:
            caught.append(error)
            # Not noted: asked for again, it is done again.
            return await ctx.step("work", retried(work, QUICK))

    ended = await run_to_the_end(store, handler)
    assert caught == [last]
    assert (ended.result, work.tried) == ("ok", 5)

    failed = await run_to_the_end(
        store, one_step(retried(Failing(*(OSError(f"no {n}") for n in range(9))), QUICK)),
        task_id="failed",
    )  # fmt: skip
    assert (failed.status, failed.error) == (TaskStatus.FAILED, "OSError: no 3")


@pytest.mark.parametrize(
    ("on", "error", "tried"),
    [
        (ConnectionError, ConnectionResetError(), 2),
        ((KeyError, OSError), KeyError(), 2),
        (ConnectionError, ValueError(), 1),
        (Exception, LeaseLost("t", epoch=1, current=2), 1),
        (Exception, ExceptionGroup("both", [ValueError(), LeaseLost("t", epoch=1, current=2)]), 1),
        (Exception, ExceptionGroup("one", [ValueError()]), 2),
        (Exception, asyncio.CancelledError(), 1),
        (Exception, BackendUnavailable("test", "away"), 2),
    ],
    ids=[
        "subclass",
        "one of",
        "another",
        "ours",
        "ours in a group",
        "a group",
        "cancelled",
        "away",
    ],
)
async def test_only_errors_of_the_policys_kinds_are_tried_again_and_never_ours(
    store: RedisStateStore, on: Any, error: BaseException, tried: int
) -> None:
    work = Failing(error)
    policy = RetryPolicy(attempts=3, on=on, wait_initial_s=0.001, wait_jitter_s=0)
    await make(store)
    await run_once(store, one_step(retried(work, policy)))
    assert work.tried == tried


async def test_the_workers_policy_holds_for_each_step_that_brings_none(
    store: RedisStateStore,
) -> None:
    mine, plain, once = Failing(OSError()), Failing(OSError()), Failing(OSError("once"))

    async def handler(ctx: TaskContext) -> Any:
        found = [
            await ctx.step("mine", retried(mine, RetryPolicy(attempts=2, wait_jitter_s=0))),
            await ctx.checkpoint_step("plain", plain),
        ]
        try:
            return await ctx.step("once", retried(once, RetryPolicy(attempts=1)))
        except OSError as error:
            return [*found, str(error)]

    ended = await run_to_the_end(store, handler, steps=StepPolicy(retry=QUICK))
    assert ended.result == ["ok", "ok", "once"]
    assert (mine.tried, plain.tried, once.tried) == (2, 2, 1)


async def test_what_is_asked_for_inside_of_an_attempt_has_the_same_names_in_each(
    store: RedisStateStore,
) -> None:
    inner = Failing()
    keys: list[str] = []

    async def work(ctx: TaskContext) -> str:
        keys.append(ctx.effect_id())
        await ctx.step("inner", inner)
        if len(keys) < 3:
            raise ConnectionError
        return "ok"

    async def handler(ctx: TaskContext) -> Any:
        return await ctx.step("outer", retried(work, QUICK), ctx)

    assert (await run_to_the_end(store, handler)).result == "ok"
    assert inner.tried == 1
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_retried_work_keeps_its_arguments_and_called_plainly_is_tried_once() -> None:
    def add(left: int, *, right: int) -> int:
        """Add."""
        return left + right

    work = retried(add)
    assert work(1, right=2) == 3
    assert work.__doc__ == "Add."
    failing = Failing(OSError())
    with pytest.raises(OSError):  # noqa: PT011 - that very one
        retried(failing)()
    assert failing.tried == 1


async def test_no_attempt_begins_after_the_timeout(store: RedisStateStore) -> None:
    work = Failing(*(OSError() for _ in range(100)))
    policy = RetryPolicy(attempts=100, wait_initial_s=0.02, wait_jitter_s=0, timeout_s=0.1)
    ended = await run_to_the_end(store, one_step(retried(work, policy)))
    assert ended.status is TaskStatus.FAILED
    assert 1 <= work.tried < 10


@pytest.mark.parametrize("hard", [False, True])
async def test_a_cancel_ends_the_wait_between_two_attempts_at_once(
    store: RedisStateStore, *, hard: bool
) -> None:
    work = Failing(OSError(), OSError())
    async with pool(store, {"h": one_step(retried(work, PATIENT))}) as client:
        task = await client.submit("h", session_id=SESSION)
        await eventually(lambda: notices(store, task), "the first attempt has failed")
        # Long before the next attempt: that would come after the end of this test.
        await client.cancel(SESSION, task, reason="enough", hard=hard)
        ended = await becomes(client, task, TaskStatus.CANCELLED)
        assert (ended.error, work.tried) == ("enough", 1)


async def test_no_attempt_begins_while_the_task_is_told_to_pause(store: RedisStateStore) -> None:
    tried: list[int] = []

    async def work(ctx: TaskContext) -> str:
        tried.append(ctx.epoch)
        if len(tried) == 1:
            await ctx.inbox.wait()
            raise OSError
        return "ok"

    async def handler(ctx: TaskContext) -> Any:
        return await ctx.step("work", retried(work, QUICK), ctx)

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await eventually(lambda: tried, "the first attempt has begun")
        await client.steer(SESSION, task, SteeringEventType.PAUSE)
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "fail now"})
        await eventually(lambda: notices(store, task), "the first attempt has failed")
        with pytest.raises(AssertionError, match="not within"):
            await eventually(lambda: len(tried) > 1, "it goes on", timeout_s=0.3)
        await client.steer(SESSION, task, SteeringEventType.RESUME)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "ok"


async def test_a_lost_lease_ends_the_wait_between_two_attempts_at_once(
    store: RedisStateStore,
) -> None:
    work = Failing(OSError(), OSError())
    ended: list[BaseException] = []

    async def handler(ctx: TaskContext) -> Any:
        try:
            await ctx.step("work", retried(work, PATIENT))
        except BaseException as error:
            ended.append(error)
            raise

    async with pool(store, {"h": handler}, lease_s=1) as client:
        task = await client.submit("h", session_id=SESSION)
        await eventually(lambda: notices(store, task), "the first attempt has failed")
        taken = await steal(store, task)
        assert taken.attempts == 2
        await eventually(lambda: ended, "the wait is over")
        assert isinstance(ended[0], (LeaseLost, asyncio.CancelledError))
        assert work.tried == 1
        await client.cancel(SESSION, task)
        await client.drop_queue()


async def test_listeners_of_stamina_hear_the_kind_of_an_error_and_never_its_text(
    store: RedisStateStore,
) -> None:
    heard: list[str] = []

    def hook(details: RetryDetails) -> None:
        heard.append(repr(details))

    before = get_on_retry_hooks()
    set_on_retry_hooks([hook])
    try:
        work = Failing(ConnectionError("s3cret"))
        await run_to_the_end(store, one_step(retried(work, QUICK)))
    finally:
        set_on_retry_hooks(before)
    assert len(heard) == 1
    assert "_Failed('ConnectionError')" in heard[0]
    assert "s3cret" not in heard[0]


async def test_staminas_own_switches_are_heeded(store: RedisStateStore) -> None:
    work = Failing(OSError("first"))
    stamina.set_active(False)
    try:
        ended = await run_to_the_end(store, one_step(retried(work, QUICK)))
    finally:
        stamina.set_active(True)
    assert (ended.error, work.tried) == ("OSError: first", 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("wait_initial_s", -1),
        ("wait_max_s", float("inf")),
        ("wait_jitter_s", float("nan")),
        ("timeout_s", 0),
        ("on", BaseException),
        ("on", (OSError, "ValueError")),
    ],
)
def test_terms_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        RetryPolicy(**{field: value})
    assert caught.value.field == field
