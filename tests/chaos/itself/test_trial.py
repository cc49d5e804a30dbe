"""The report itself: it must not hide what went wrong."""

from __future__ import annotations

import pytest

from redis_state.errors import BackendUnavailable, OutcomeUnknown
from tests.chaos.support.trial import History, Size, Trial, table


def test_an_outage_is_a_time_without_an_acknowledgement_while_somebody_waits() -> None:
    history = History()
    history.note("a", "ok", 0.0, 1.0)
    # Nobody asked for anything between 1 and 10.
    history.note("b", "ok", 10.0, 10.5)
    assert history.longest_outage_s() == 1.0
    history.note("c", "unknown", 10.2, 14.0)
    history.note("d", "ok", 14.0, 15.0)
    # Since 10.5 somebody waited; c was answered to nobody's satisfaction.
    assert history.longest_outage_s() == 4.5


def test_how_an_operation_ends_is_told_by_its_error() -> None:
    history = History()
    for error in (None, OutcomeUnknown("x", "y"), BackendUnavailable("x", "y")):
        with history.doing("x"):
            if error is not None:
                raise error
    assert [event[1] for event in history.events] == ["ok", "unknown", "fail"]
    with pytest.raises(ValueError, match="ours"), history.doing("x"):
        raise ValueError("ours")


@pytest.mark.parametrize(
    ("wrong", "stated"),
    [
        ({"faults": 0}, "no fault fired"),
        ({"lost": 2}, "lost 2"),
        ({"duplicated": 1}, "1 twice"),
        ({"history": History()}, "nothing was acknowledged"),
    ],
)
def test_a_trial_is_ok_only_if_nothing_is_wrong_with_it(
    wrong: dict[str, object], stated: str
) -> None:
    given = {"faults": 1, "history": History([("x", "ok", 0.0, 1.0)])}
    trial = Trial("x", Size(1), **{**given, **wrong})  # type: ignore[arg-type]
    assert trial.row()["ok"] is False
    with pytest.raises(AssertionError, match=stated):
        trial.conclude()
    assert trial.row()["ok"] is False
    good = Trial("x", Size(1), **given)  # type: ignore[arg-type]
    good.conclude()
    assert good.row()["ok"] is True
    assert table([trial.row(), good.row()])[1].endswith("NO")


def test_a_smaller_size_has_at_least_what_it_needs_and_more_patience() -> None:
    assert Size(0.02).of(1000, least=30) == 30
    assert Size(0.5).of(1000, least=30) == 500
    assert (Size(1).tolerance, Size(0.5).tolerance) == (1.0, 5.0)
