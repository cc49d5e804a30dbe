from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import product
from typing import Any

import pytest

from redis_state import InvalidField, InvalidTransition
from redis_state.models import (
    A2A,
    ASAP,
    CORE,
    TaskContextSnapshot,
    TaskPhase,
    TaskState,
    TaskStatus,
    TaskType,
    Vocabulary,
    can_transition,
    transition,
)
from redis_state.models.lifecycle import MOVES

ALL = [CORE, ASAP, A2A]

# As the guides of the protocols draw them.
_ASAP_MOVES = {
    "submitted": {"working", "cancelled"},
    "working": {"completed", "failed", "cancelled", "input_required"},
    "input_required": {"working", "cancelled"},
    "completed": set[str](),
    "failed": set[str](),
    "cancelled": set[str](),
}
_A2A_FINAL = {"completed", "failed", "canceled", "rejected", "unknown"}


def task(status: Any = TaskStatus.RUNNING) -> TaskState:
    snapshot = TaskContextSnapshot(session_id="s", task_id="t")
    return TaskState("t", "s", status, TaskType.FOREGROUND, 0, snapshot)


@pytest.mark.parametrize("words", ALL, ids=lambda words: words.name)
def test_every_word_means_a_phase_and_is_said_for_it(words: Vocabulary) -> None:
    for word, phase in words.words.items():
        assert words.phase(word) is phase
        assert words.word(phase) == word
    for phase in TaskPhase:
        stated = words.phase(words.word(phase))
        assert stated is phase or stated.value == phase.status.value


def test_asap_allows_what_its_guide_draws_and_nothing_more() -> None:
    for current, wanted in product(_ASAP_MOVES, repeat=2):
        allowed = wanted in _ASAP_MOVES[current]
        assert can_transition(current, wanted, words=ASAP) is allowed, (current, wanted)


def test_the_core_allows_what_workers_do_and_no_way_back_from_an_end() -> None:
    for source, wanted in product(TaskStatus, repeat=2):
        allowed = can_transition(source, wanted)
        assert not (allowed and (source.is_terminal or source is wanted))
    assert can_transition("RUNNING", "PENDING")
    assert can_transition("PAUSED", "PENDING")
    assert not can_transition("PENDING", "COMPLETE")
    assert not can_transition("PAUSED", "COMPLETE")


def test_a2a_ends_in_five_states_and_is_never_submitted_anew() -> None:
    for source, wanted in product(A2A.words, repeat=2):
        allowed = can_transition(source, wanted, words=A2A)
        assert not (allowed and (source in _A2A_FINAL or wanted in {"submitted", source}))
        if source not in _A2A_FINAL and wanted in _A2A_FINAL - {"completed"}:
            assert allowed
    assert can_transition("working", "auth-required", words=A2A)
    assert can_transition("auth-required", "working", words=A2A)


def test_ends_are_ends_in_every_vocabulary() -> None:
    for phase in TaskPhase:
        assert phase.is_terminal is phase.status.is_terminal is (not MOVES[phase])


def test_a_move_gives_a_new_task_and_leaves_the_old_one() -> None:
    old = task()
    new = transition(old, TaskStatus.COMPLETE)
    assert (old.status, new.status) == (TaskStatus.RUNNING, TaskStatus.COMPLETE)
    assert new.updated_at >= old.updated_at
    assert replace(new, status=old.status, updated_at=old.updated_at) == old
    assert transition(old, "input_required", words=ASAP).status is TaskStatus.PAUSED


@pytest.mark.parametrize("words", ALL, ids=lambda words: words.name)
def test_what_may_move_by_its_word_may_move_as_a_task(words: Vocabulary) -> None:
    for current, wanted in product(words.words, repeat=2):
        if can_transition(current, wanted, words=words):
            moved = transition(task(words.phase(current).status), wanted, words=words)
            assert moved.status is words.phase(wanted).status
    if words is not A2A:
        with pytest.raises(InvalidTransition):
            transition(task(TaskStatus.PAUSED), words.word(TaskPhase.PAUSED), words=words)


def test_a_task_of_a_host_keeps_its_hosts_enum() -> None:
    class Status(str, Enum):  # noqa: UP042 - as hosts have it
        RUNNING = "RUNNING"
        COMPLETE = "COMPLETE"

    moved: object = transition(task(Status.RUNNING), "COMPLETE").status
    assert moved is Status.COMPLETE


def test_a_refused_move_says_from_to_and_which_task() -> None:
    with pytest.raises(InvalidTransition, match="task 't' is COMPLETE") as caught:
        transition(task(TaskStatus.COMPLETE), "RUNNING")
    refused = caught.value
    assert (refused.task_id, refused.current, refused.wanted) == ("t", "COMPLETE", "RUNNING")
    with pytest.raises(InvalidTransition, match="is completed: it cannot become working"):
        transition(task(TaskStatus.COMPLETE), "working", words=ASAP)


@pytest.mark.parametrize("word", ["RUNNING", "Working", "", None, 3, ["working"]])
def test_a_word_of_no_vocabulary_is_refused_by_name(word: Any) -> None:
    with pytest.raises(InvalidField, match="ASAP says one of submitted, working") as caught:
        can_transition("working", word, words=ASAP)
    assert caught.value.field == "status"
