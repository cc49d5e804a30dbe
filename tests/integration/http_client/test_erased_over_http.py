"""Sessions and users are erased over HTTP as by the direct client, by who may."""

from __future__ import annotations

import logging
from operator import methodcaller

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import errors
from redis_state.errors import LostRace, RedisStateError, SessionRunning
from redis_state.gateway.answers import problem_answer, problem_of
from redis_state.http_client.requests.caller import Ask
from redis_state.http_client.requests.problems import read_problem
from tests.support.http.http_gateway import OverHttp

pytestmark = pytest.mark.role("any", why="it reads the names of all keys")


async def _made(over: OverHttp) -> None:
    """Have tasks of two users end, in three sessions."""
    for session_id, user in (("ann-1", "ann"), ("ann-2", "ann"), ("seven", 7)):
        task_id = await over.direct.submit("echo", session_id=session_id, attributes={"user": user})
        await over.direct.wait(session_id, task_id, timeout_s=30)


async def test_it_counts_and_erases_as_the_direct_client(
    over: OverHttp, caplog: pytest.LogCaptureFixture
) -> None:
    await _made(over)
    calls = [
        methodcaller("forget", "ann-1", dry_run=True, running="refuse"),
        methodcaller("forget", "nothing-is-here", dry_run=True),
        methodcaller("forget_user", "ann", dry_run=True),
        # A number is not the text of it.
        methodcaller("forget_user", "7", dry_run=True),
        methodcaller("forget_user", "ann", attribute="owner", shared=True, dry_run=True),
    ]
    for call in calls:
        assert await call(over.http) == await call(over.direct)
    with caplog.at_level(logging.INFO, "redis_state.erasure.eraser"):
        report = await over.http.forget("ann-1")
        assert (report.sessions, report.redis["tasks"], report.is_complete) == (["ann-1"], 1, True)
        assert (await over.http.forget_user(7)).sessions == ["seven"]
    said = [each.getMessage() for each in caplog.records if "eraser" in each.name]
    assert len(said) == 2
    assert all("by 'root'" in each for each in said)
    left = await over.direct.find()
    assert [task.session_id for task in left.tasks] == ["ann-2"]


async def test_what_is_wrong_and_who_may_not_is_refused(over: OverHttp) -> None:
    await _made(over)
    wrong = [
        methodcaller("forget", 5),
        methodcaller("forget", "ann-1", running="odd"),
        methodcaller("forget_user", 1.5),
        methodcaller("forget_user", "ann", running="odd"),
        methodcaller("forget_user", "ann", attribute="a:b"),
    ]
    for call in wrong:
        fields: set[str] = set()
        for client in (over.direct, over.http):
            with pytest.raises(errors.InvalidField) as caught:
                await call(client)
            fields.add(caught.value.field)
        assert len(fields) == 1, fields
    others = ("admin:session:other", "steer:*", "submit:*", "read:*", "resolve:*", "write:*")
    async with over.caller("eve", *others) as eve, over.caller("ann", "admin:session:ann-1") as ann:
        for client, call in (
            (eve, methodcaller("forget", "ann-1")),
            (eve, methodcaller("forget_user", "ann")),
            (ann, methodcaller("forget_user", "ann")),
            (ann, methodcaller("forget", "ann-2", dry_run=True)),
        ):
            with pytest.raises(errors.CommandRefused, match="may not do this"):
                await call(client)
    assert len((await over.direct.find()).tasks) == 3


@pytest.mark.parametrize("error", [SessionRunning("s", 2), LostRace("slots are being moved")])
def test_why_nothing_is_erased_is_the_same_error(error: RedisStateError) -> None:
    answered = problem_answer(problem_of(error))
    problem = read_problem(answered.status_code, {}, bytes(answered.body))
    assert problem is not None
    found = problem.error("http://x", Ask("DELETE", ("sessions", "s"), repeatable=False))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
