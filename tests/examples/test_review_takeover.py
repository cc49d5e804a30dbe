"""What the driver makes of a review whose worker was killed, from nothing but its updates."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from examples.review.outcome import Review, Role, takeover_problems
from redis_state.models import StateUpdate, UpdateType


def seen(*states: tuple[str, str]) -> Review:
    review = Review("t", Path("x.md"), "x.md", Role.PLAIN)
    for status, worker in states:
        content = {"status": status} | ({"worker": worker} if worker else {})
        review.observe(
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
    review = seen(("PENDING", ""), ("RUNNING", "one"), ("RUNNING", "two"), ("COMPLETE", ""))
    assert (review.left_by, review.taken_over_by) == ("one", "two")
    assert list(takeover_problems([review], "one")) == []


def test_a_run_after_a_hand_over_or_a_pause_is_none() -> None:
    for between in ("PENDING", "PAUSED"):
        review = seen(("RUNNING", "one"), (between, ""), ("RUNNING", "two"))
        assert (review.left_by, review.taken_over_by) == ("", "")


@pytest.mark.parametrize(
    ("states", "killed", "message"),
    [
        ([("RUNNING", "one"), ("RUNNING", "two")], "", "no worker was killed"),
        ([("RUNNING", "one"), ("PENDING", "")], "one", "nothing was taken over from the worker"),
        ([("RUNNING", "one"), ("RUNNING", "two")], "two", "nothing was taken over from the worker"),
        ([("RUNNING", "one"), ("RUNNING", "one")], "one", "x.md: not taken over by another worker"),
    ],
)
def test_a_missing_takeover_is_reported(
    states: list[tuple[str, str]], killed: str, message: str
) -> None:
    (problem,) = takeover_problems([seen(*states)], killed)
    assert problem.startswith(message)
