"""Whatever is put into an agent's state is refused by name, where it is given, or read back.

Each field of each type is given each of a list of odd values, in three ways: to the constructor,
to a copy, and past both. What is accepted is stored on a real server and loaded again.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from itertools import count
from math import inf, nan
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentContext,
    AgentDefinition,
    AgentSession,
    AgentState,
    AgentStep,
    ExecutionBudget,
    ExecutionContinuation,
    ExecutionHistory,
    ExecutionState,
    InferenceResponse,
    LlmConfig,
    Message,
    Messages,
    MessageStore,
    ResponseData,
    ResponseFormat,
    Section,
    SessionHeader,
    SessionStore,
    StepError,
    StepExecution,
    StepExecutions,
    StopSignal,
    StopSignals,
    ToolCall,
    ToolExecution,
    ToolResult,
    Usage,
    derived_id,
    new_id,
)
from redis_state.agents.state.wire.wire import Slot, Wire, now
from redis_state.errors import InvalidField, SessionConflict


class Role(StrEnum):
    USER = "user"


class Colour(Enum):
    RED = object()


class Ambiguous:
    """Compares as an array does: to no true and no false."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _: object) -> bool:
        raise ValueError


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


ID = "018f0000-0000-7000-8000-000000000001"  # of version 7
CALL = ToolCall(name="t")
STEP = AgentStep()
NAIVE = datetime(2026, 1, 2)  # noqa: DTZ001 - one of those that are refused
ODD: tuple[Any, ...] = (
    *(None, True, 0, -7, 10**30, 2**2048, 1.5, nan, inf, -inf, 1j, Decimal("1.5")),
    *("", "agent-7", "a\x00b", "\ud800", "\ud83d\ude00", ID, uuid.UUID(ID), Role.USER, Colour.RED),
    *(b"x", bytearray(b"\xff"), NAIVE, date(2026, 1, 2), timedelta(1), object(), Ambiguous(), len),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(microseconds=7))),
    *([], (), {}, {1}, (1,), ["a"], [nan], [b"x"], [Ambiguous()], range(3)),
    *({"k": nan}, {"k": {1}}, {"k": (1, 2)}, {1: 2}, {"\ud83d\ude00": 1, "\U0001f600": 2}),
    *({"k": Ambiguous()}, {"k": Role.USER}, {"k": {"k": [None, {"k": NAIVE}]}}),
    *({"name": 5, "tool_calls": 5, "tool_result": "x"}, {"function": 1, "usage": "x", "args": 1}),
    *(deep(100), {"k": deep(300)}, cycle(), {"k": cycle()}),
    *(Usage(), [Message()], (Usage(),), Messages([Message()]), StopSignals(), [CALL]),
    *([Section(), Section(messages=Messages([Message()]))], Section(name="s")),
)

EXECUTION = ExecutionState()
DEFINITION = AgentDefinition(name="a")
HEADER = SessionHeader()


def in_state(state: AgentState) -> AgentSession:
    return AgentSession(header=SessionHeader(), definition=DEFINITION, state=state)


def in_context(context: AgentContext) -> AgentSession:
    return in_state(AgentState(context=context))


def in_section(section: Section) -> AgentSession:
    return in_context(AgentContext(store=MessageStore(sections=(section,))))


def in_message(message: Message) -> AgentSession:
    return in_section(Section(messages=Messages([message])))


def in_execution(**fields: Any) -> AgentSession:
    return in_state(AgentState(execution=ExecutionState(**fields)))


def in_step(**fields: Any) -> AgentSession:
    return in_execution(current_step=AgentStep(**fields))


def in_signals(signals: StopSignals) -> AgentSession:
    return in_execution(continuation=ExecutionContinuation(stop_signals=signals))


def in_definition(definition: AgentDefinition) -> AgentSession:
    return AgentSession(header=SessionHeader(), definition=definition, state=AgentState())


def in_session(header: SessionHeader) -> AgentSession:
    return AgentSession(header=header, definition=DEFINITION, state=AgentState())


Place = Callable[[Any], AgentSession]
DONE = StepExecution(id=STEP.id, step=STEP, started_at=now(), completed_at=now())
PLACES: Mapping[Any, tuple[Wire, Place]] = {
    AgentSession: (in_definition(DEFINITION), lambda part: part),
    SessionHeader: (HEADER, in_session),
    AgentDefinition: (DEFINITION, in_definition),
    ExecutionBudget: (
        ExecutionBudget(),
        lambda part: in_definition(AgentDefinition(name="a", budget=part)),
    ),
    AgentState: (AgentState(), in_state),
    LlmConfig: (LlmConfig(), lambda part: in_state(AgentState(llm_config=part))),
    AgentContext: (AgentContext(), in_context),
    ResponseFormat: (
        ResponseFormat(type="json_schema"),
        lambda part: in_context(AgentContext(response_format=part)),
    ),
    MessageStore: (MessageStore(), lambda part: in_context(AgentContext(store=part))),
    Section: (Section(), in_section),
    Message: (Message(), in_message),
    ToolCall: (CALL, lambda part: in_message(Message(tool_calls=(part,)))),
    ToolResult: (ToolResult(content=""), lambda part: in_message(Message(tool_result=part))),
    ExecutionState: (EXECUTION, lambda part: in_state(AgentState(execution=part))),
    ExecutionContinuation: (
        ExecutionContinuation(),
        lambda part: in_execution(continuation=part),
    ),
    StopSignals: (StopSignals(), in_signals),
    StopSignal: (StopSignal(), lambda part: in_signals(StopSignals(items=(part,)))),
    StepExecution: (DONE, lambda part: in_execution(step_executions=StepExecutions([part]))),
    AgentStep: (STEP, lambda part: in_execution(current_step=part)),
    ToolExecution: (
        ToolExecution(tool_call=CALL),
        lambda part: in_step(tool_executions=(part,)),
    ),
    StepError: (StepError(), lambda part: in_step(errors=(part,))),
    InferenceResponse: (InferenceResponse(), lambda part: in_step(inference_response=part)),
    Usage: (Usage(), lambda part: in_step(inference_response=InferenceResponse(usage=part))),
    ResponseData: (
        ResponseData(),
        lambda part: in_step(inference_response=InferenceResponse(response_data=part)),
    ),
}
# A session whose version is not 0 is saved, not created.
ELSEWHERE = {(SessionHeader, "version")}


def test_every_type_of_the_state_is_in_the_table() -> None:
    assert set(PLACES) == set(Wire.__subclasses__())
    for kind, (sample, _) in PLACES.items():
        assert {slot.field for slot in kind.slots} == set(type(sample).model_fields)


def given(sample: Any, field: str, value: Any) -> list[Any]:
    """Give a value to the constructor, and to a copy: what either makes of it, once if equal."""
    kind: Any = sample.__class__
    made: list[Any] = []
    for make in (kind, sample.changed):
        others: dict[str, Any] = sample.__dict__ if make is kind else {}
        try:
            part = make(**{**others, field: value})
        except InvalidField as error:
            assert_names(error, field)
            continue
        if not made or part.to_dict() != made[0].to_dict() or repr(part) != repr(made[0]):
            made.append(part)
    return made


def assert_names(error: InvalidField, *names: str) -> None:
    assert any(name in re.split(r"[.\[]", error.field) for name in names), error


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
async def test_what_a_field_accepts_is_stored_and_read_back_equal(
    kind: type[Wire], store: RedisStateStore
) -> None:
    sample, place = PLACES[kind]
    number, accepted = count(), list[AgentSession]()
    for field in {slot.field for slot in kind.slots} - {f for k, f in ELSEWHERE if k is kind}:
        for value in ODD:
            for part in given(sample, field, value):
                session = place(part)
                if (kind, field) != (SessionHeader, "session_id"):
                    header = session.header.changed(session_id=f"s{next(number)}")
                    session = session.changed(header=header)
                accepted.append(session)
    sessions = SessionStore(store)
    unique = list({session.session_id: session for session in accepted}.values())
    stored = await asyncio.gather(*map(sessions.create, unique))
    loaded = await asyncio.gather(*(sessions.get(each.session_id) for each in unique))
    assert loaded == stored
    assert [(each.definition, each.state) for each in loaded] == [
        (each.definition, each.state) for each in unique
    ]
    assert [each.to_dict() for each in loaded] == [each.to_dict() for each in stored]
    assert loaded


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
async def test_what_was_put_in_past_the_checks_is_refused_by_the_save_or_read_back(
    kind: type[Wire], store: RedisStateStore
) -> None:
    sample, place = PLACES[kind]
    sessions = SessionStore(store)

    async def force(slot: Slot, value: Any) -> AgentSession | None:
        """Return what was stored and read back; None if it was refused by name."""
        try:
            forced = place(sample.model_copy(update={slot.field: value}))
            if slot.field not in ("header", "session_id"):
                own = forced.header.model_copy(update={"session_id": new_id()})
                forced = forced.changed(header=own)
            stored = await sessions.create(forced)
        except InvalidField as error:
            assert_names(error, slot.field, slot.key)
            return None
        except SessionConflict:
            assert (kind, slot.field) in ELSEWHERE
            return None
        loaded = await sessions.get(stored.session_id)
        assert loaded.to_dict() == stored.to_dict()
        return loaded

    # Every other value into every other field: each value comes into most kinds of fields.
    values = [
        (*ODD[at % 2 :: 2], getattr(sample, slot.field)) for at, slot in enumerate(kind.slots)
    ]
    tried = await asyncio.gather(
        *(
            force(slot, value)
            for slot, some in zip(kind.slots, values, strict=True)
            for value in some
        )
    )
    assert None in tried
    assert any(tried)


CALLS: Mapping[str, Callable[[Any], Any]] = {
    "context": lambda value: AgentState().with_context(value),
    "Messages": lambda value: AgentState().with_messages(value),
    "content": lambda value: AgentState().with_user_message(value),
    "system_prompt": lambda value: AgentState().with_system_prompt(value),
    "llm_config": lambda value: AgentState().with_llm_config(value),
    "execution_id": lambda value: AgentState().with_new_execution(value),
    "execution": lambda value: AgentState().with_execution(value),
    "current_step": lambda value: AgentState().with_current_step(value),
    "items": lambda value: AgentState().with_stop_signal(value),
    "is_continuation_requested": lambda value: AgentState().with_continuation_requested(
        requested=value
    ),
    "metadata.key": lambda value: AgentState().with_metadata(key=value),
    "errors": lambda value: AgentStep().with_error(value),
    "name": lambda value: MessageStore().with_section(value, []),
    "definition": AgentSession.fresh,
    "session_id": lambda value: AgentSession.fresh(DEFINITION, session_id=value),
    "state": lambda value: in_session(HEADER).with_state(value),
    "status": lambda value: in_session(HEADER).with_status(value),
    "parts": lambda value: derived_id("a", value),
}


@pytest.mark.parametrize("field", CALLS)
def test_every_method_refuses_by_name_what_a_state_cannot_hold(field: str) -> None:
    for value in (object(), {"k": {1}}, Ambiguous()):
        with pytest.raises(InvalidField) as refused:
            CALLS[field](value)
        assert refused.value.field.startswith(field)


async def test_a_summary_that_json_does_not_have_is_refused_and_not_recorded(
    store: RedisStateStore,
) -> None:
    history = ExecutionHistory(store)
    for value, place in (({1}, "summary.tags"), ([1, {"k": nan}], r"summary.tags\[1\].k")):
        with pytest.raises(InvalidField, match=place):
            await history.record("agent", {"executionId": "e", "tags": value})
    assert await history.all("agent") == []
    assert await history.record("agent", {"executionId": "e", "tags": ("a", Role.USER)})
    assert await history.last("agent") == {"executionId": "e", "tags": ["a", "user"]}
