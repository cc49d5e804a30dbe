"""The state machine beside ASAP's own, and tasks that it moves on the server."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore
from redis_state.integrations.asap import move_task
from redis_state.models import (
    ASAP,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    can_transition,
)
from tests.asap import real


@pytest.fixture
async def stored(store: RedisStateStore) -> RedisStateStore:
    snapshot = TaskContextSnapshot(session_id="s", task_id="t")
    await store.save_task(TaskState("t", "s", TaskStatus.PENDING, TaskType.FOREGROUND, 0, snapshot))
    return store


def test_the_vocabulary_is_asaps_word_for_word_and_move_for_move() -> None:
    assert set(ASAP.words) == {status.value for status in real.TaskStatus}
    for source, wanted in product(real.TaskStatus, repeat=2):
        theirs = real.machine.can_transition(source, wanted)
        assert can_transition(source, wanted, words=ASAP) is theirs, (source, wanted)
    for status in real.TaskStatus:
        assert ASAP.phase(status).is_terminal is status.is_terminal()


async def test_a_refused_move_is_asaps_own_error(stored: RedisStateStore) -> None:
    done = real.TaskStatus.COMPLETED
    with pytest.raises(real.errors.InvalidTransitionError) as caught:
        await move_task(stored, "s", "t", done)
    refused: Any = caught.value
    assert refused.message == "Invalid transition from 'submitted' to 'completed'"
    assert (refused.from_state, refused.to_state) == ("submitted", "completed")
    assert refused.details["task_id"] == "t"
    with pytest.raises(real.errors.InvalidTransitionError, match="'missing' to 'completed'"):
        await move_task(stored, "s", "nobody", done)
    with pytest.raises(InvalidField, match="status: ASAP says one of"):
        await move_task(stored, "s", "t", "COMPLETED")


async def test_a_task_that_may_be_cancelled_while_it_waits_for_input_is(
    stored: RedisStateStore,
) -> None:
    for status in ("WORKING", "INPUT_REQUIRED", "CANCELLED"):
        moved = await move_task(stored, "s", "t", real.TaskStatus[status])
    assert moved.status is TaskStatus.CANCELLED


async def test_what_two_copies_both_allow_happens_once_on_the_server(
    stored: RedisStateStore,
) -> None:
    await move_task(stored, "s", "t", "working")
    ends = ["completed", "cancelled", "failed"] * 4
    results: list[Any] = await asyncio.gather(
        *(move_task(stored, "s", "t", end) for end in ends), return_exceptions=True
    )
    lost = [each for each in results if isinstance(each, real.errors.InvalidTransitionError)]
    (won,) = [each for each in results if each not in lost]
    assert len(lost) == len(ends) - 1
    assert {each.from_state for each in lost} == {_word(won)}


def _word(state: TaskState) -> str:
    return next(word for word, phase in ASAP.words.items() if phase.value == state.status.value)
