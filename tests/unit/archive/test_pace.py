"""The pace of an archiver, counted on a clock of the test's own."""

from __future__ import annotations

import pytest

from redis_state.archive.copying.pace import Pace


class Hours:
    """A clock of work: what rests is recorded, and takes no time of it."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self.rests: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)


@pytest.fixture
def hours() -> Hours:
    return Hours()


def paced(hours: Hours, share: float) -> Pace:
    return Pace(share, clock=hours, sleep=hours.sleep)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 1.0])
async def test_work_is_its_share_of_work_and_rests(hours: Hours, share: float) -> None:
    pace = paced(hours, share)
    for _ in range(5):
        pace.begin()
        for piece in (0.001, 0.02, 0.005):
            hours.now += piece
            await pace.rest()
        hours.now += 0.003
        await pace.rest_between_rounds()
    assert hours.now / (hours.now + sum(hours.rests)) == pytest.approx(share)


async def test_each_piece_is_rested_for_before_the_next(hours: Hours) -> None:
    pace = paced(hours, 0.2)
    pace.begin()
    for piece in (0.01, 0.03):
        hours.now += piece
        await pace.rest()
    assert hours.rests == pytest.approx([0.04, 0.12])


async def test_rests_within_a_round_end_long_before_its_claims(hours: Hours) -> None:
    pace = paced(hours, 0.01)
    pace.begin()
    for _ in range(10):
        hours.now += 0.1
        await pace.rest()
    assert sum(hours.rests) == pytest.approx(30.0)
    await pace.rest_between_rounds()
    assert sum(hours.rests) == pytest.approx(99.0)
    pace.begin()
    hours.now += 0.1
    await pace.rest()
    assert hours.rests[-1] == pytest.approx(9.9)


async def test_waiting_for_an_archive_that_says_nothing_is_no_work(hours: Hours) -> None:
    pace = paced(hours, 0.2)
    pace.begin()
    hours.now += 30.0
    await pace.rest()
    assert [round(rest, 6) for rest in hours.rests] == [8.0]


async def test_a_new_share_holds_from_the_next_piece_on(hours: Hours) -> None:
    pace = paced(hours, 0.2)
    pace.share = 1.0
    hours.now += 0.5
    await pace.rest_between_rounds(least_s=0.25)
    assert hours.rests == [0.25]


async def test_a_long_rest_is_taken_in_parts_and_forgotten_in_a_hurry(hours: Hours) -> None:
    pace = paced(hours, 0.1)
    hours.now += 1.0
    for owes in (True, True):
        await pace.rest_between_rounds(most_s=4.0)
        assert pace.owes is owes
    hours.now += 1.0
    await pace.rest_on(most_s=4.0)
    assert not pace.owes
    hours.now += 1.0
    await pace.rest_between_rounds(most_s=4.0)
    pace.hurry()
    assert not pace.owes
    hours.now += 1.0
    await pace.rest_between_rounds()
    assert [round(rest, 6) for rest in hours.rests] == [4.0, 4.0, 1.0, 4.0, 0.0]
