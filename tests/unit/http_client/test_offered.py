"""Nothing of `TaskClient` is missing without a reason, and nothing has a reason and is there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("httpx", reason="needs the http extra")

from redis_state.http_client import HttpQueues, HttpRates, HttpSchedules, HttpTaskClient
from redis_state.http_client.not_offered import NOT_OFFERED
from redis_state.worker import Queues, Rates, Schedules, TaskClient

PAIRS = (
    ("", TaskClient, HttpTaskClient),
    ("queues.", Queues, HttpQueues),
    ("rates.", Rates, HttpRates),
    ("schedules.", Schedules, HttpSchedules),
)


def _methods(kind: type[Any]) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(found)
        for name, found in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def _missing() -> set[str]:
    missing: set[str] = set()
    for prefix, direct, over_http in PAIRS:
        missing |= {
            f"{prefix}{name}"
            for name, found in inspect.getmembers(direct, lambda of: isinstance(of, property))
            if not hasattr(over_http, name) and found
        }
        offered = _methods(over_http)
        for name, signature in _methods(direct).items():
            if name not in offered:
                missing.add(f"{prefix}{name}")
                continue
            missing |= {
                f"{prefix}{name}({parameter})"
                for parameter in signature.parameters
                if parameter not in offered[name].parameters
            }
    return missing


def test_every_method_and_argument_is_offered_or_has_a_reason() -> None:
    assert _missing() == set(NOT_OFFERED)
    assert all(reason.endswith(".") for reason in NOT_OFFERED.values())


def test_queues_and_schedules_are_where_they_are() -> None:
    assert isinstance(inspect.getattr_static(HttpTaskClient, "queues"), property)
    assert isinstance(HttpTaskClient("http://x").schedules, HttpSchedules)


@pytest.mark.parametrize(("direct", "over_http"), [pair[1:] for pair in PAIRS])
def test_what_is_offered_returns_the_same_models_and_has_the_same_kinds_of_arguments(
    direct: type[Any], over_http: type[Any]
) -> None:
    offered, theirs = _methods(over_http), _methods(direct)
    for name in theirs.keys() & offered.keys():
        assert offered[name].return_annotation == theirs[name].return_annotation, name
        for parameter, given in offered[name].parameters.items():
            known = theirs[name].parameters.get(parameter)
            # The most that one call changes, and a count that needs a session, differ.
            if known is None or (name, parameter) in {("bulk", "limit"), ("count", "session_id")}:
                continue
            assert (given.kind, given.default) == (known.kind, known.default), (name, parameter)
