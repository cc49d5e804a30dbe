"""What is counted as lost when a server was killed."""

from __future__ import annotations

import pytest

from tests.chaos.support.forgetting import MAY_FORGET_S, Acknowledged, Kill, lost

KILLS = [Kill(10.0, 10.2), Kill(20.0, 20.2)]


@pytest.mark.parametrize(
    ("gone", "always", "everysec"),
    [
        ((), 0, 0),
        ((9.5,), 1, 0),
        ((9.0, 9.5), 2, 0),
        ((18.5, 19.0, 19.5), 3, 0),
        # Its answer was read only after the signal.
        ((10.1,), 1, 0),
        # It is older than what may be held back.
        ((7.5, 8.5, 9.0, 9.5), 4, 1),
        # What was acknowledged after it, and before the signal, is there.
        ((9.0,), 1, 1),
        # The server was not killed after it.
        ((20.5,), 1, 1),
    ],
)
def test_what_may_be_forgotten_is_the_end_of_what_came_just_before_a_kill(
    gone: tuple[float, ...], always: int, everysec: int
) -> None:
    times = [7.5, 8.5, 9.0, 9.5, 10.1, 10.5, 18.5, 19.0, 19.5, 20.5]
    done = [Acknowledged(at, at not in gone) for at in times]
    assert lost(done, KILLS, MAY_FORGET_S["always"]) == always
    assert lost(done, KILLS, MAY_FORGET_S["everysec"]) == everysec
