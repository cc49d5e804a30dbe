"""Run the checks of a host, some at a time, and give what came of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, Literal

from redis_state import limits
from redis_state.embedded.running import embedded_server
from redis_state.errors import InvalidField
from redis_state.testing.conformance.checks import CHECKS as _CHECKS
from redis_state.testing.conformance.checks import ENCRYPTED, missing_for
from redis_state.testing.conformance.host import HostUnderTest, load_host
from redis_state.testing.conformance.trial import open_trial

CHECKS: Final[tuple[str, ...]] = tuple(_CHECKS)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check. ``message`` says what failed, or why it was skipped."""

    check: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str = ""
    # Worker processes that were started, and those of them that were killed.
    processes: int = 0
    kills: int = 0

    @property
    def failed(self) -> bool:
        """Whether the host does not conform."""
        return self.outcome == "failed"

    def __str__(self) -> str:
        return f"{self.check:<12} {self.outcome:<8} {self.message}".rstrip()


async def conformance(
    reference: str,
    *,
    url: str | None = None,
    checks: Sequence[str] = CHECKS,
    at_once: int = 4,
    timeout_s: float = 60.0,
) -> AsyncGenerator[CheckResult]:
    """Run checks of a host, ``at_once`` together, and yield their results as they end.

    ``reference`` is ``module:NAME`` or ``path/to/file.py:NAME`` of a `HostUnderTest`: each worker
    process imports it. Without a ``url`` a server is started. A wait of a check ends after
    ``timeout_s``. Errors: ConfigError for a reference that leads to no host; InvalidField for an
    unknown check.
    """
    host = _checked(reference, checks)
    limits.count("at_once", at_once)
    free = asyncio.Semaphore(at_once)

    async def run(check: str, url: str) -> CheckResult:
        async with free:
            return await _run(reference, host, check, url=url, timeout_s=timeout_s)

    async with AsyncExitStack() as stack:
        if url is None:
            url = (await stack.enter_async_context(embedded_server(None))).url
        running = [asyncio.create_task(run(check, url)) for check in checks]
        try:
            for ended in asyncio.as_completed(running):
                yield await ended
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def run_check(
    reference: str, check: str, *, url: str, timeout_s: float = 60.0
) -> CheckResult:
    """Run one check of a host. Arguments and errors as of `conformance`."""
    host = _checked(reference, [check])
    return await _run(reference, host, check, url=url, timeout_s=timeout_s)


def _checked(reference: str, checks: Sequence[str]) -> HostUnderTest:
    host = load_host(reference)
    for field, named in (("checks", checks), ("skips", host.skips)):
        if unknown := set(named) - _CHECKS.keys():
            raise InvalidField(field, f"{min(unknown)!r} is none of {', '.join(_CHECKS)}")
    return host


async def _run(
    reference: str, host: HostUnderTest, check: str, *, url: str, timeout_s: float
) -> CheckResult:
    if why := host.skips.get(check) or missing_for(check):
        return CheckResult(check, "skipped", why)
    keys = _payload_key() if check == ENCRYPTED else None
    async with open_trial(
        reference, host, url=url, payload_keys=keys, timeout_s=timeout_s
    ) as trial:
        message = None
        try:
            await _CHECKS[check](trial)
        except* AssertionError as failed:
            message = str(failed.exceptions[0])
        except* Exception as failed:  # noqa: BLE001 - whatever it is, the check has failed
            error = failed.exceptions[0]
            message = f"{type(error).__name__}: {error}"
    outcome: Literal["passed", "failed"] = "passed" if message is None else "failed"
    return CheckResult(check, outcome, message or "", trial.processes, trial.kills)


def _payload_key() -> str:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - of the extra crypto

    return Fernet.generate_key().decode()
