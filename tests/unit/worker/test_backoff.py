"""Delays between tries."""

from __future__ import annotations

from itertools import islice

from redis_state.backoff import Backoff


def test_delays_double_up_to_the_longest() -> None:
    exact = Backoff(0.5, 3.0, jitter=0.0)
    assert list(islice(exact.delays(), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert exact.after(0) == 0.5
    assert exact.after(10**6) == 3.0


def test_jitter_takes_its_part_of_a_delay_and_no_more() -> None:
    half, whole = Backoff(4, 4), Backoff(4, 4, jitter=1.0)
    taken = [half.after(1) for _ in range(200)]
    assert all(2 <= each <= 4 for each in taken)
    assert max(taken) - min(taken) > 1
    assert min(whole.after(1) for _ in range(200)) < 1
