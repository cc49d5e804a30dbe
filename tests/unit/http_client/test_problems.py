"""An error of the library goes through an answer of the gateway, and comes out as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("httpx", reason="needs the http extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx

from redis_state import errors
from redis_state.errors import RedisStateError
from redis_state.gateway.answers import HttpProblem, not_known_now, problem_answer, problem_of
from redis_state.http_client import HttpTaskClient
from redis_state.http_client.documents import read_queue_key
from redis_state.http_client.requests.caller import Ask
from redis_state.http_client.requests.problems import Problem, read_problem
from redis_state.worker import QueueKeyInfo

AT_MS = 1_700_000_000_123
WHOLE: list[RedisStateError] = [
    errors.AlreadyVoted("ann", at_ms=AT_MS, approved=True),
    errors.DelegationRefused("ann", "bob", reason="bob has a vote"),
    errors.InvalidDecision([("$.limit", "maximum 1000"), ("$.x", "required")]),
    errors.InvalidField("limit", "must be >= 1"),
    errors.InvalidField("attributes['a:b']", "text is needed"),
    errors.InvalidTransition("t/1", current="COMPLETE", wanted="CANCELLED"),
    errors.KeyReused("signal"),
    errors.KeyReused("task", key="t/1"),
    errors.LimitReached("steering events", limit=5, code="steering_backlog_full"),
    errors.NotADecider("ann", delegated_to="bob"),
    errors.NotADecider("ann"),
    errors.PayloadTooLarge("input", size=10, limit=5),
    errors.RetryRefused("t", "it has no handler"),
    errors.SteeringValidationError(["a", "b"]),
    errors.TaskInProgress("s", "t", status="RUNNING"),
    errors.TokenResolved(actor="ann", at_ms=AT_MS, decision={"approved": True, "value": 1}),
    errors.VersionConflict("schedule 'x'", expected="a", actual="b"),
]
READ = Ask("GET", ("tasks",))
CHANGE = Ask("POST", ("tasks",), body={}, repeatable=False)


def _through(problem: HttpProblem) -> Problem:
    answer = problem_answer(problem)
    found = read_problem(answer.status_code, answer.headers, bytes(answer.body))
    assert found is not None
    return found


@pytest.mark.parametrize("error", WHOLE, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_with_all_its_facts(error: RedisStateError) -> None:
    found = _through(problem_of(error)).error("http://x", CHANGE)
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize(
    "error", [errors.TaskUnknown("t"), errors.TokenUnknown(expired=False)], ids=str
)
def test_what_is_not_there_is_told_as_the_call_knows_it(error: RedisStateError) -> None:
    asked = Ask("GET", ("tasks",), missing=lambda: error)
    assert _through(problem_of(error)).error("http://x", asked) is error


@pytest.mark.parametrize(
    ("problem", "ask", "kind"),
    [
        (problem_of(errors.OutcomeUnknown("redis:1", "broke")), CHANGE, errors.OutcomeUnknown),
        (problem_of(errors.BackendUnavailable("r:1", "x")), READ, errors.BackendUnavailable),
        (HttpProblem(429, "too_many_requests", "too many"), CHANGE, errors.BackendUnavailable),
        (HttpProblem(500, "internal", "this gateway has failed"), CHANGE, errors.OutcomeUnknown),
        (HttpProblem(500, "internal", "this gateway has failed"), READ, errors.CommandRefused),
        (HttpProblem(401, "unauthenticated", "unknown"), READ, errors.AuthenticationFailed),
        (HttpProblem(403, "forbidden", "no right"), READ, errors.CommandRefused),
        (HttpProblem(421, "wrong_host", "not here"), READ, errors.CommandRefused),
        (HttpProblem(409, "of_a_later_version", "lost"), CHANGE, errors.Conflict),
        (HttpProblem(409, "already_voted", "without facts"), CHANGE, errors.Conflict),
    ],
    ids=str,
)
def test_trouble_of_the_gateway_is_of_the_kind_that_says_what_to_do(
    problem: HttpProblem, ask: Ask, kind: type[RedisStateError]
) -> None:
    found = _through(problem).error("http://x", ask)
    assert type(found) is kind
    assert problem.message in str(found)


@pytest.mark.parametrize(
    ("given", "named"),
    [("delay_s", "delay"), ("filter.attributes.a", "attributes.a"), ("", "body")],
)
def test_a_field_of_a_body_is_named_as_the_argument_is(given: str, named: str) -> None:
    listed = [{"field": given, "problem": "Input should be a number"}]
    problem = HttpProblem(422, "invalid", "x", facts={"errors": listed})
    error = _through(problem).error("http://x", CHANGE)
    assert isinstance(error, errors.InvalidField)
    assert (error.field, error.problem) == (named, "Input should be a number")


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("invalid", {"errors": []}),
        ("invalid", {"errors": {"a": 1}}),
        ("invalid", {"errors": [{"field": 1, "problem": "x"}]}),
        ("invalid_decision", {"errors": 1}),
        ("already_resolved", {"by": "a", "at": 1, "decision": None}),
        ("limit_reached", {}),
    ],
)
def test_facts_of_another_version_are_no_other_error(code: str, facts: dict[str, Any]) -> None:
    found = _through(HttpProblem(422, code, "what is known", facts=facts))
    error = found.error("http://x", READ)
    assert type(error) is errors.CommandRefused
    assert "what is known" in str(error)


def test_an_answer_of_something_else_is_told_as_that() -> None:
    found = read_problem(404, {}, b"<html>nothing here</html>")
    assert found is not None
    assert not found.nothing
    assert "no gateway has answered: status 404" in str(found.error("http://x", READ))
    gone = read_problem(502, {"retry-after": "7"}, b"bad gateway")
    assert gone is not None
    assert (gone.passing, gone.after_s, gone.maybe(CHANGE), gone.maybe(READ)) == (
        *(True, 7.0, True),
        False,
    )
    assert read_problem(200, {}, b"{}") is None


def test_a_caller_who_cannot_be_judged_has_begun_nothing() -> None:
    found = _through(not_known_now("the issuer's keys cannot be read now"))
    assert (found.passing, found.maybe(CHANGE)) == (True, False)
    assert type(found.error("http://x", CHANGE)) is errors.BackendUnavailable


def test_a_body_that_is_too_large_is_told_with_its_size() -> None:
    problem = HttpProblem(413, "body_too_large", "a body may have 5 bytes", facts={"limit": 5})
    error = _through(problem).error("http://x", Ask("POST", ("tasks",), body={"input": "xxx"}))
    assert isinstance(error, errors.PayloadTooLarge)
    assert (error.field, error.size, error.limit) == ("body", 15, 5)


async def test_a_change_of_a_queue_that_an_older_gateway_has_not_is_refused() -> None:
    answered = problem_answer(HttpProblem(404, "not_found", "there is no such thing"))
    transport = httpx.MockTransport(lambda _: httpx.Response(404, content=bytes(answered.body)))
    async with HttpTaskClient("http://x", transport=transport) as client:
        queues = client.queues
        for change in (
            *(queues.pause("q"), queues.resume("q")),
            *(queues.limit("q", running=1), queues.limit_key("q", "k", running=1)),
        ):
            with pytest.raises(errors.CommandRefused, match="may be older than this client"):
                await change


async def test_a_route_that_is_not_there_is_an_error_of_each_call_that_needs_an_answer() -> None:
    answered = problem_answer(HttpProblem(404, "not_found", "there is no such thing"))
    transport = httpx.MockTransport(lambda _: httpx.Response(404, content=bytes(answered.body)))
    hour = timedelta(hours=1)
    async with HttpTaskClient("http://x/elsewhere", transport=transport) as client:
        for call in (
            *(client.submit("echo", session_id="s"), client.find(), client.sessions()),
            *(client.list_pauses(), client.workers(), client.bulk("retry", session_id="s")),
            *(client.debounce("echo", session_id="s", wait=hour),),
            *(client.batch("echo", 1, session_id="s", after=hour),),
            *(client.queues.get("q"), client.queues.list(), client.queues.keys("q")),
            *(client.schedules.list(), client.schedules.delete("x")),
        ):
            with pytest.raises(errors.CommandRefused, match="older than this client"):
                await call
        # What may be absent is.
        assert await client.get("s", "t") is None
        assert await client.value("s", "t", "key", default=5) == 5


def test_a_field_of_a_later_gateway_is_no_error() -> None:
    named: dict[str, Any] = {
        "limit_key": "k",
        "in_turn": None,
        "waiting": 1,
        "running": 0,
        "oldest_s": 0.5,
    }
    assert read_queue_key(named | {"of_a_later_version": 1}) == QueueKeyInfo(**named)
