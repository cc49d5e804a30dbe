"""How a step that fails is tried again: a policy, and stamina, which knows how long to wait.

await ctx.step("fetch", retried(fetch, RetryPolicy(attempts=5, on=ConnectionError)), url)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from stamina import Attempt, retry_context

from redis_state import limits
from redis_state.errors import InvalidField, LeaseLost
from redis_state.worker.tasks.execution.exits import Exited

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried, after which errors, and how long to wait in between.

    The wait doubles from ``wait_initial_s`` up to ``wait_max_s``, and up to ``wait_jitter_s`` of
    chance is added. ``timeout_s`` after the first attempt has begun, no other one begins; it does
    not cut an attempt short. LeaseLost, TaskCancelled and TaskPaused are never tried again.
    Errors: InvalidField for terms that make no sense.
    """

    attempts: int = 3
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    wait_initial_s: float = 0.1
    wait_max_s: float = 5.0
    wait_jitter_s: float = 1.0
    timeout_s: float | None = 45.0

    def __post_init__(self) -> None:
        """Refuse terms that make no sense, before a step is begun under them."""
        limits.count("attempts", self.attempts)
        for name in ("wait_initial_s", "wait_max_s", "wait_jitter_s"):
            limits.seconds(name, getattr(self, name), least=0)
        if self.timeout_s is not None:
            limits.patience("timeout_s", self.timeout_s, least=limits.SHORTEST_S)
        kinds: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidField("on", "kinds of Exception are needed")

    def covers(self, error: Exception) -> bool:
        """Return whether this error is one to try again after."""
        # TaskCancelled and TaskPaused are no Exceptions: they do not come this far.
        group: ExceptionGroup[Exception] = ExceptionGroup("", [error])
        return isinstance(error, self.on) and group.subgroup((LeaseLost, Exited)) is None


class Retried(Generic[P, R]):
    """Some work and the policy by which a step tries it again. A plain call tries it once."""

    def __init__(self, work: Callable[P, R], policy: RetryPolicy) -> None:
        # First: it copies what another object of this class has.
        update_wrapper(self, work)
        self.work: Callable[P, R] = work
        self.policy: RetryPolicy = policy

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        """Do the work."""
        return self.work(*arguments, **options)


def retried(work: Callable[P, R], policy: RetryPolicy | None = None) -> Retried[P, R]:
    """Give a step a retry policy of its own, instead of the worker's.

    A wrapper and no option of `step`, whose keyword arguments are all the work's.
    ``RetryPolicy(attempts=1)`` tries once where the worker has a policy.
    """
    return Retried(work, policy or RetryPolicy())


async def try_by(
    policy: RetryPolicy,
    work: Callable[[], Awaitable[T]],
    *,
    waiting: Callable[[Awaitable[Attempt]], Awaitable[Attempt]],
    failed: Callable[[int, Exception], Awaitable[None]],
) -> T:
    """Run some work until it succeeds, its error is another kind, or the policy ends it.

    ``waiting`` waits for the next attempt and may give up. ``failed`` receives each error that the
    policy covers. Errors: the work's last one, as it was raised.
    """
    failure: Exception = _Failed()

    def again(_: Exception) -> bool:
        return policy.covers(failure)

    attempts = aiter(
        retry_context(
            on=again,
            attempts=policy.attempts,
            timeout=policy.timeout_s,
            wait_initial=policy.wait_initial_s,
            wait_max=policy.wait_max_s,
            wait_jitter=policy.wait_jitter_s,
        )
    )
    try:
        while (attempt := await _next(attempts, waiting)) is not None:
            try:
                return await work()
            except Exception as error:  # noqa: BLE001 - the policy says which are tried again
                failure = error
            _give_back(attempt, type(failure).__name__)
            if policy.covers(failure):
                await failed(attempt.num, failure)
        raise failure
    finally:
        # The last one refers back to this call by its traceback.
        failure = _Failed()


async def _next(
    attempts: AsyncIterator[Attempt], waiting: Callable[[Awaitable[Attempt]], Awaitable[Attempt]]
) -> Attempt | None:
    try:
        return await waiting(anext(attempts))
    except _Failed as failed:
        failed.__traceback__ = None  # as in `_give_back`
        return None


def _give_back(attempt: Attempt, kind: str) -> None:
    """Report a failed attempt to stamina. Only its kind: stamina's hooks log what they get."""
    failed = _Failed(kind)
    try:
        with attempt:
            raise failed
    finally:
        # stamina's objects are rings that keep it, and by its traceback this call and its run.
        failed.__traceback__ = None


class _Failed(Exception):
    """The stand-in for a work's error where stamina decides whether to retry."""
