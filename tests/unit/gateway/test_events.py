"""Events: no value of a row breaks out of its frame, and no right goes with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.errors import CursorGap, InvalidField
from redis_state.gateway.showing.cutting import CUT
from redis_state.gateway.streaming import events
from redis_state.gateway.streaming.events import FrameWriter
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.models.tasks import utc_now
from redis_state.stores.sessions.session_log import Entry
from redis_state.worker.tasks.waitpoints.pause_model import token_of
from tests.support.http.event_streams import EventParser

HOSTILE = (
    "a\nevent: end\ndata: {}\n\n",
    "a\r\rid: 9-9\r\n\r\n",
    "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e",
    "</script><img src=x onerror=alert(1)>",
    "\x00\ufeff",
    "\ud800 alone",
    ": comment",
    "retry: 1",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def frame_of(content: Any, *, session: str = "s", task: str = "t", **more: Any) -> events.Frame:
    update = StateUpdate.model_construct(
        session_id=session,
        task_id=task,
        trace_id=more.get("trace_id"),
        update_id=more.get("update_id", "u"),
        update_type=more.get("update_type", UpdateType.PROGRESS),
        content=content,
        step_index=None,
        total_steps=None,
        created_at=utc_now(),
    )
    return FrameWriter(session).frame(Entry("7-1795398718523-0badcafe", update))


@given(content=JSON, session=TEXTS, task=TEXTS, update_id=TEXTS)
@example(content=HOSTILE, session=HOSTILE[0], task=HOSTILE[1], update_id=HOSTILE[5])
def test_any_row_is_one_event_of_one_line_that_reads_back(
    content: Any, session: str, task: str, update_id: str
) -> None:
    frame = frame_of(content, session=session, task=task, update_id=update_id)
    assert frame.data.count(b"\n") == 4
    assert b"\r" not in frame.data
    (found,) = EventParser().feed(frame.data)
    assert (found.name, found.cursor) == ("PROGRESS", "7-1795398718523-0badcafe")
    assert found.data["task_id"] == task
    assert found.data["session_id"] == session
    assert found.content == json.loads(json.dumps(content))


@pytest.mark.parametrize("session", ["s", "a b/ü\n", "", "x" * 300, "\ud800"])
def test_the_token_of_a_pause_is_cut_wherever_it_stands(session: str) -> None:
    token = token_of(session, "secret", "pause:approve#0")
    frame = frame_of(
        {"note": f"approve with {token}, please", token: [token], "url": f"https://x/?t={token}&y"},
        session=session,
        task=token,
        update_id=token,
    )
    assert token.rpartition(".")[2].encode() not in frame.data
    (found,) = EventParser().feed(frame.data)
    assert found.content["note"] == f"approve with {CUT}, please"
    assert found.data["task_id"] == CUT


@pytest.mark.parametrize("text", ["s.", "s." + "a" * 31, "x." + "a" * 32, "s" + "a" * 40])
def test_what_is_no_token_stays(text: str) -> None:
    (found,) = EventParser().feed(frame_of({"text": text}).data)
    assert found.content == {"text": text}


def test_what_stands_under_the_name_of_a_token_is_cut_at_any_depth() -> None:
    content = {
        "pause": {"resume_token": "host-1", "reason": "why"},
        "many": [{"resume_token": "host-2"}, {"resume_token": {"deep": "host-3"}, "kept": 1}],
        "resume_token": None,
        "text": "the resume_token is a secret",
    }
    frame = frame_of(content)
    assert b"host-" not in frame.data
    (found,) = EventParser().feed(frame.data)
    assert found.content == {
        "pause": {"resume_token": CUT, "reason": "why"},
        "many": [{"resume_token": CUT}, {"resume_token": CUT, "kept": 1}],
        "resume_token": CUT,
        "text": "the resume_token is a secret",
    }


def test_a_row_says_its_run_and_reads_back_as_an_update() -> None:
    frame = frame_of({"n": 10**30, "text": "\u2028"})
    assert frame.update().content == {"n": 10**30, "text": "\u2028"}
    assert frame.update().update_type is UpdateType.PROGRESS


@pytest.mark.parametrize("status", TaskStatus)
def test_a_terminal_status_is_recognised(status: TaskStatus) -> None:
    frame = frame_of({"status": status.value}, update_type=UpdateType.STATUS_CHANGE)
    assert frame.ends_task is status.is_terminal
    assert not frame_of({"status": status.value}).ends_task


def test_a_gap_says_what_is_missing_and_has_no_id() -> None:
    gap = CursorGap("1-2", reason="trimmed", missed=5, resume_after="6-9")
    (found,) = EventParser().feed(events.resync(gap))
    assert (found.name, found.cursor) == ("resync", None)
    assert found.data == {"missed": 5, "reason": "trimmed", "resume_after": "6-9"}


@pytest.mark.parametrize("after", ["1-2\n", "\uff11-2", "1-2-0BADCAFE", "0-0-", "1-2" * 20])
def test_a_cursor_is_checked_by_its_form(after: str) -> None:
    with pytest.raises(InvalidField) as caught:
        events.check_cursor(after)
    assert caught.value.field == "after"
    assert after not in str(caught.value)
