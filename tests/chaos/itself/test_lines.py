"""The judge of busy sessions itself: it must see what goes wrong."""

from __future__ import annotations

import pytest

from tests.chaos.support.lines import wrong_line

Log = list[tuple[str, str]]
_POLICIES = {"a": "enqueue", "i": "interrupt", "r": "replace", "j": "reject"}


def _runs(task: str, end: str = "COMPLETE") -> Log:
    return [(task, "RUNNING"), (task, end)]


@pytest.mark.parametrize(
    "log",
    [
        [("a", "PENDING"), *_runs("a"), ("j", "PENDING"), *_runs("j")],
        [("a", "PENDING"), ("r", "PENDING"), ("a", "CANCELLED"), *_runs("r")],
        [("a", "PENDING"), ("a", "RUNNING"), ("i", "PENDING"), ("a", "CANCELLED"), *_runs("i")],
        # It was faster than its end.
        [("a", "PENDING"), ("a", "RUNNING"), ("i", "PENDING"), ("a", "COMPLETE"), *_runs("i")],
        [("a", "PENDING"), ("a", "RUNNING"), ("r", "PENDING"), ("a", "COMPLETE"), *_runs("r")],
    ],
)
def test_what_each_policy_promises_is_right(log: Log) -> None:
    assert list(wrong_line(log, _POLICIES)) == []


@pytest.mark.parametrize(
    ("log", "stated"),
    [
        ([("a", "PENDING"), ("j", "PENDING"), *_runs("a"), *_runs("j")], "j was not rejected"),
        ([("a", "PENDING"), ("r", "PENDING"), *_runs("a"), *_runs("r")], "r had replaced it"),
        (
            [("a", "PENDING"), ("a", "RUNNING"), ("i", "PENDING"), *_runs("i"), ("a", "COMPLETE")],
            "a was completed after i had begun",
        ),
        ([("a", "PENDING"), *_runs("a"), ("a", "RUNNING")], "RUNNING after it was COMPLETE"),
        ([("a", "PENDING")], "a is PENDING for ever"),
        ([("x", "PENDING"), *_runs("x")], "x was asked for by nobody"),
    ],
)
def test_what_breaks_a_promise_is_seen(log: Log, stated: str) -> None:
    assert any(stated in wrong for wrong in wrong_line(log, _POLICIES))
