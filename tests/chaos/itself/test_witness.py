"""The witness of limits itself: it must see what goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.support.witness import ALL, Witness

Line = tuple[Any, ...]
_LIMITS = {ALL: 2, "k": 1}


def begin(task: str, epoch: int = 1, worker: str = "w", group: str = "k") -> Line:
    return ("begin", task, epoch, worker, group)


def end(task: str, epoch: int = 1) -> Line:
    return ("end", task, epoch, "done")


def test_handlers_that_run_one_after_the_other_are_within_the_limit() -> None:
    seen = Witness([begin("a"), end("a"), begin("b"), end("b")], _LIMITS)
    assert not seen.problems
    assert seen.most == {"k": 1, ALL: 1}


@pytest.mark.parametrize(
    ("lines", "stated"),
    [
        ([begin("a"), begin("b"), end("a"), end("b")], "2 of k ran at a time, not 1"),
        (
            [begin(name, group=name) for name in "abc"] + [end(name) for name in "abc"],
            "3 of all ran at a time, not 2",
        ),
        ([begin("a"), ("dead", "w"), begin("a", 2)], "w wrote after its death"),
        ([begin("a")], "a neither ended nor died"),
        ([("limit", ALL, 0), begin("a"), end("a")], "1 of all ran at a time, not 0"),
    ],
)
def test_too_many_handlers_are_seen(lines: list[Line], stated: str) -> None:
    assert any(problem.startswith(stated) for problem in Witness(lines, _LIMITS).problems)


def test_a_killed_workers_handler_runs_until_it_is_dead() -> None:
    killed = [begin("a", worker="v"), ("dead", "v"), begin("b"), end("b"), begin("a", 2)]
    seen = Witness([*killed, end("a", 2)], _LIMITS)
    assert not seen.problems
    assert seen.killed_while_running() == 1
    too_soon = [begin("a", worker="v"), begin("b"), ("dead", "v"), end("b")]
    assert Witness(too_soon, _LIMITS).problems


def test_a_run_without_a_lease_counts_up_to_its_last_record_that_was_taken() -> None:
    rest = [begin("a", 2, "other"), end("a", 2), end("a")]
    part, held = ("part", "a", 1, 0), ("held", "a", 1, 0)
    seen = Witness([begin("a"), part, held, begin("b"), end("b"), *rest], _LIMITS)
    assert not seen.problems
    assert [run.epoch for run in seen.lost_alive] == [1]
    assert Witness([begin("a"), begin("b"), part, held, end("b"), *rest], _LIMITS).problems
    # It may have been stopped between the record and its line, or before its first act.
    late = [begin("a"), part, begin("b"), held, end("b"), *rest]
    assert not Witness(late, _LIMITS).problems
    assert not Witness([begin("b"), begin("a"), end("b"), *rest], _LIMITS).problems


def test_a_run_that_goes_on_after_its_process_was_stopped_counts_to_its_end() -> None:
    goes_on = [begin("a"), ("stopped", "w"), begin("b", worker="v"), end("b"), end("a")]
    assert Witness(goes_on, _LIMITS).problems
    killed = [begin("a"), ("stopped", "w"), begin("b", worker="v"), ("dead", "w"), end("b")]
    assert not Witness(killed, _LIMITS).problems
    too_soon = [begin("a"), begin("b", worker="v"), ("stopped", "w"), ("dead", "w"), end("b")]
    assert Witness(too_soon, _LIMITS).problems


def test_turns_are_one_after_the_other_in_their_order() -> None:
    lines = [begin("a", group=""), begin("b", group=""), end("a"), end("b")]
    assert list(Witness(lines, _LIMITS).wrong_turns(["a", "b"])) == ["b began before a ended"]
    lines = [begin("a", group=""), end("a"), begin("b", group=""), end("b")]
    assert not list(Witness(lines, _LIMITS).wrong_turns(["a", "b"]))
    assert list(Witness(lines, _LIMITS).wrong_turns(["b", "a"]))
