"""Checks that any adapter of a host can run: real worker processes, real kills, a real server.

    # my_host.py
    def handler(errand: Errand) -> Handler: ...

    HOST = HostUnderTest(name="my host", handler=handler)

    async for result in conformance("my_host:HOST", url="redis://localhost:6379/0"):
        print(result)

Under pytest, a test for each check:

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_host(check: str, redis_state_server: EmbeddedServer) -> None:
        result = await run_check("my_host:HOST", check, url=redis_state_server.url)
        assert not result.failed, result.message

On a command line: ``python -m redis_state.testing.conformance my_host:HOST``. Each check starts
workers of its own as processes, in a namespace of its own that is deleted at its end. See
`HostUnderTest` for what a host is to do. Needs the extra ``worker``, and POSIX's signals.

- ``kill-look``, ``kill-draft``, ``kill-send``: `kill -9` in the middle of an effect.
- ``deciders``: two deciders of one pause. ``reject``: a person rejects.
- ``elsewhere``: the process that paused is killed, and another one resumes.
- ``hand-off``: a worker stops in the middle of an effect, and another one takes the task up.
- ``replay``: the workers of a task are killed twice, and its log is as if nobody had disturbed it.
- ``cancel``: during an effect.
- ``ids``: odd ids of sessions and tasks. ``same-id``: two sessions with a task of one id.
- ``encryption``: with `payload_keys` no key has a payload in clear. Needs the extra ``crypto``.
- ``lifetimes``: every key expires.
"""

from __future__ import annotations

from redis_state.testing.conformance.host import EFFECTS, Errand, HostUnderTest
from redis_state.testing.conformance.running import (
    CHECKS,
    CheckResult,
    conformance,
    run_check,
)

__all__ = [
    "CHECKS",
    "EFFECTS",
    "CheckResult",
    "Errand",
    "HostUnderTest",
    "conformance",
    "run_check",
]
