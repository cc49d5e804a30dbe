"""What the demo makes of a review whose worker was killed, from nothing but its updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_state.demo.review_run import Review, Role, takeover_problems
from redis_state.models import StateUpdate, UpdateType


def heard(*states: tuple[str, str]) -> Review:
    review = Review("t", Path("x.md"), "x.md", Role.PLAIN)
    for status, worker in states:
        content = {"status": status} | ({"worker": worker} if worker else {})
        review.hear(
            StateUpdate(
                session_id="s",
                task_id="t",
                trace_id=None,
                update_type=UpdateType.STATUS_CHANGE,
                content=content,
            )
        )
    return review


def test_a_run_after_a_run_is_a_takeover() -> None:
    review = heard(("PENDING", ""), ("RUNNING", "one"), ("RUNNING", "two"), ("COMPLETE", ""))
    assert (review.left_by, review.taken_over_by) == ("one", "two")
    assert list(takeover_problems([review], "one")) == []


def test_a_run_after_a_hand_over_or_a_pause_is_none() -> None:
    for between in ("PENDING", "PAUSED"):
        review = heard(("RUNNING", "one"), (between, ""), ("RUNNING", "two"))
        assert (review.left_by, review.taken_over_by) == ("", "")


@pytest.mark.parametrize(
    ("states", "killed", "said"),
    [
        ([("RUNNING", "one"), ("RUNNING", "two")], "", "no worker was killed"),
        ([("RUNNING", "one"), ("PENDING", "")], "one", "nothing was taken over from the worker"),
        ([("RUNNING", "one"), ("RUNNING", "two")], "two", "nothing was taken over from the worker"),
        ([("RUNNING", "one"), ("RUNNING", "one")], "one", "x.md: not taken over by another worker"),
    ],
)
def test_what_was_not_taken_over_as_it_should_is_told(
    states: list[tuple[str, str]], killed: str, said: str
) -> None:
    (problem,) = takeover_problems([heard(*states)], killed)
    assert problem.startswith(said)
