"""What a caller may use of a gateway's process, however many others come."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.requests.limits import CallerUsage, GatewayLimits


def allowed(usage: CallerUsage, caller: str) -> int:
    """Make requests until one is refused; return how many were not."""
    for count in range(100):
        with suppress(HttpProblem):
            usage.take(caller)
            continue
        return count
    raise AssertionError("none is refused")


def test_who_comes_under_many_names_does_not_get_rid_of_a_limit() -> None:
    usage = CallerUsage(GatewayLimits(requests_per_s=0.001, burst=3))
    assert allowed(usage, "limited") == 3
    usage.take("half")
    usage.take("half")
    for number in range(25_000):
        usage.take(f"other {number}")
    assert allowed(usage, "limited") == 0
    assert allowed(usage, "half") == 1
    # There are more than are remembered.
    assert allowed(usage, "other 0") == 3


def test_a_limit_ends_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    usage = CallerUsage(GatewayLimits(requests_per_s=0.5, burst=3))
    assert allowed(usage, "one") == 3
    with pytest.raises(HttpProblem) as refused:
        usage.take("one")
    assert refused.value.headers["retry-after"] == "2"
    now[0] += 4
    assert allowed(usage, "one") == 2
    now[0] += 3_600
    assert allowed(usage, "one") == 3
