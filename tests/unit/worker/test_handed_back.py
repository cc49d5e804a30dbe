"""How often a task was handed back."""

from __future__ import annotations

import pytest

from redis_state.errors import (
    ArchiveUnavailable,
    BackendUnavailable,
    CommandRefused,
    JournalRewound,
    StoreFull,
)
from redis_state.worker.tasks.handed_back import MOST_REFUSALS, HandedBack, handed_back_for


def test_it_is_read_as_it_was_written() -> None:
    assert HandedBack.read(None) == HandedBack.read(b"") == HandedBack()
    assert HandedBack.read(HandedBack(3, 2, 57).field) == HandedBack(3, 2, 57)
    reopened = HandedBack(3, 2, 57, 4, 9, retry=1)
    assert HandedBack.read(reopened.field, retry=1) == reopened
    # An earlier version has reopened it since, and left the field.
    assert HandedBack.read(reopened.field, retry=2) == HandedBack(retry=2)


def test_a_refusal_counts_to_the_end_and_a_full_server_does_not() -> None:
    found = HandedBack()
    for _ in range(MOST_REFUSALS + 5):
        found = handed_back_for(StoreFull("full"), found, done=7) or found
    assert (found.times, found.is_hopeless) == (MOST_REFUSALS + 5, False)
    for _ in range(MOST_REFUSALS - 1):
        found = handed_back_for(CommandRefused("no"), found, done=7) or found
    assert not found.is_hopeless
    refused = handed_back_for(ArchiveUnavailable("read", "no"), found, done=7)
    assert refused is not None
    assert refused.is_hopeless


def test_progress_begins_the_row_again() -> None:
    before = HandedBack(9, 9, 7)
    assert before.again(refused=True, done=8) == HandedBack(1, 1, 8)
    assert before.again(refused=True, done=6) == HandedBack(10, 10, 6)


def test_those_that_cannot_read_it_are_a_row_of_their_own() -> None:
    found = HandedBack(9, 9, 7).again_unread(1).again_unread(2)
    assert found == HandedBack(9, 9, 7, unread=2, attempt=2)
    # A run of attempt 3 has read it, and ended somehow.
    assert found.again_unread(4) == HandedBack(9, 9, 7, unread=1, attempt=4)
    assert found.again(refused=True, done=7) == HandedBack(10, 10, 7)
    assert found.has_read().again_unread(3).unread == 1


def test_each_wait_may_be_longer_than_the_one_before_up_to_a_minute() -> None:
    assert 0.5 <= HandedBack(1).wait_s <= 1
    assert 8 <= HandedBack(5).wait_s <= 16
    assert 30 <= HandedBack(1000).wait_s <= 60


@pytest.mark.parametrize(
    "error", [BackendUnavailable("a", "r"), JournalRewound("t", known=2, found=1), ValueError()]
)
def test_other_trouble_is_not_counted(error: Exception) -> None:
    assert handed_back_for(error, HandedBack(), done=1) is None
