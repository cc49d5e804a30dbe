from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.agents import (
    GUIDE_PRIORITIES,
    AgentContext,
    AgentState,
    AgentStep,
    AgentStepType,
    ExecutionBudget,
    ExecutionState,
    ExecutionStatus,
    FrozenMap,
    InferenceResponse,
    LlmConfig,
    Message,
    StepError,
    StopReason,
    StopSignal,
    ToolCall,
    ToolExecution,
    Usage,
    execution_id_for,
    id_for,
)
from redis_state.agents.state.wire.lazy_parts import LazySequence
from redis_state.agents.state.wire.wire import Wire, now
from redis_state.errors import InvalidField

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "agent_state"
FILES = sorted(FIXTURES.glob("*.json"))
needs_fixtures = pytest.mark.skipif(
    not FILES, reason="the payloads of the original are not beside this checkout"
)


def load(file: Path) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return payload


def without_memory(part: Any) -> Any:
    """Make a part anew that does not know what it was read from."""
    if isinstance(part, Wire):
        return type(part)(**{name: without_memory(value) for name, value in vars(part).items()})
    if isinstance(part, LazySequence):
        made = cast("Any", part).__class__
        return made(without_memory(each) for each in cast("Sequence[Any]", part))
    if part.__class__ is tuple:
        return tuple(map(without_memory, part))
    return part


def step(*calls: ToolCall, stated: str = "", **fields: Any) -> AgentStep:
    messages = (Message(role="assistant", content=stated),) if stated else ()
    response = InferenceResponse(content=stated, tool_calls=calls, usage=Usage(input=3, output=2))
    return AgentStep(output_messages=messages, inference_response=response, **fields)


@needs_fixtures
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_the_original_wrote_is_written_back_key_by_key(file: Path) -> None:
    php = load(file)["php"]
    assert json.dumps(AgentState.from_dict(php).to_dict()) == json.dumps(php)


@needs_fixtures
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_state_made_here_is_written_as_the_original_writes_it(file: Path) -> None:
    php = load(file)["php"]
    state = without_memory(AgentState.from_dict(php))
    assert json.dumps(state.to_dict()) == json.dumps(php)


@needs_fixtures
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_the_original_derives_is_derived_here(file: Path) -> None:
    payload = load(file)
    state = AgentState.from_dict(payload["php"])
    execution, current = state.execution, state.current_step
    assert payload["derived"] == {
        "agent_id": state.agent_id,
        "parent_agent_id": state.parent_agent_id,
        "execution_count": state.execution_count,
        "has_execution": execution is not None,
        "execution_id": execution.execution_id if execution else None,
        "status": state.status,
        "step_count": state.step_count,
        "step_types": [each.step_type for each in state.steps],
        "current_step_type": current.step_type if current else None,
        "last_step_type": state.last_step_type,
        "should_stop": state.should_stop,
        "stop_reason": state.stop_reason(),
        "stop_source": state.stop_source(),
        "continuation_explained": execution.continuation.explain() if execution else None,
        "has_errors": state.has_errors,
        "error_messages": [error.message for error in state.errors],
        "usage": state.usage.to_dict(),
        "usage_total": state.usage.total,
        "has_final_response": state.has_final_response,
        "final_response": state.final_response,
        "current_response": state.current_response,
        "message_count": len(state.store.section("messages")),
        "system_prompt": state.context.system_prompt,
        "compiled_message_ids": [message.id for message in state.messages],
    }


ODD: dict[str, Any] = {
    "agentId": "00000001-0000-4000-8000-00000000000A",
    "createdAt": "2025-03-04T09:00:00+02:00",
    "updatedAt": "2025-03-04T09:00:00Z",
    "later": {"x": [1, None]},
    "context": {"metadata": [], "systemPrompt": "", "shape": "unknown"},
    "llmConfig": {"apiKey": "s3cret", "model": "m", "options": [], "reasoning": True},
    "executionCount": 7,
    "execution": {
        "executionId": "00000001-0000-4000-8000-000000000001",
        "status": "in_progress",
        "startedAt": "2025-03-04T09:00:00.250000+00:00",
        "continuation": {"stop_signals": [{"reason": "from_the_future", "message": ""}]},
        "stepExecutions": [
            {
                "id": "00000001-0000-4000-8000-000000000002",
                "step": {
                    "id": "00000001-0000-4000-8000-000000000002",
                    "toolExecutions": [
                        {
                            "id": "00000001-0000-4000-8000-000000000003",
                            "tool_call": {"id": "", "name": "t", "args": {"a": []}},
                            "result": "null",
                            "endedAt": "2025-03-04T09:00:01+00:00",
                        }
                    ],
                    "toolCalls": [{"id": None, "name": "t", "function": {"arguments": {"a": 1}}}],
                    "usage": {"input": 4},
                },
                "duration": 0.039,
            }
        ],
    },
}


def test_unknown_keys_old_keys_and_odd_dates_survive_a_change_beside_them() -> None:
    state = AgentState.from_dict(ODD)
    changed = state.with_user_message("hello").to_dict()
    assert {key: changed[key] for key in ODD if key not in ("context", "updatedAt")} == {
        key: ODD[key] for key in ODD if key not in ("context", "updatedAt")
    }
    assert changed["context"]["shape"] == "unknown"
    assert changed["context"]["messageStore"]["sections"][0]["messages"][0]["content"] == "hello"
    assert state.to_dict()["later"] == ODD["later"]


def test_old_keys_are_read() -> None:
    (done,) = AgentState.from_dict(ODD).steps
    assert done.usage.input == 4
    assert done.requested_calls[0].arguments == {"a": 1}
    assert done.tool_executions[0].tool_call.arguments == {"a": []}
    assert done.tool_executions[0].value is None
    assert not done.tool_executions[0].has_failed


def test_a_changed_map_that_became_empty_is_a_list_as_the_original_writes_it() -> None:
    context = AgentContext.from_dict({"metadata": {"k": 1}})
    assert context.changed(metadata=AgentContext().metadata).to_dict()["metadata"] == []


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"agentId": "no"}, "agentId"),
        ({"createdAt": "yesterday"}, "createdAt"),
        ({"executionCount": "7"}, "executionCount"),
        ({"executionCount": True}, "executionCount"),
        ({"context": {"systemPrompt": 1}}, "context.systemPrompt"),
        ({"context": {"messageStore": {"sections": [{"messages": [{"id": "x"}]}]}}}, "messages[0]"),
        ({"execution": {"status": "asleep"}}, "execution.status"),
        ({"execution": {"executionId": "x"}}, "execution.executionId"),
        ({"llmConfig": "preset"}, "llmConfig"),
    ],
)
def test_bad_payloads_name_their_field_and_show_nothing_else(
    payload: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField, match=r"needed") as caught:
        AgentState.from_dict(payload)
    assert field in caught.value.field
    assert "yesterday" not in str(caught.value)


def test_a_bad_step_is_told_when_it_is_looked_at_with_its_place() -> None:
    broken: dict[str, Any] = {"execution": {"stepExecutions": [{"id": "x", "step": {}}]}}
    state = AgentState.from_dict(broken)
    with pytest.raises(InvalidField) as caught:
        assert state.steps
    assert caught.value.field == "execution.stepExecutions[0].id"
    assert state.to_dict()["execution"]["stepExecutions"] == broken["execution"]["stepExecutions"]


def test_a_free_name_gives_the_same_id_in_every_process_and_language() -> None:
    # uuid5(uuid5(NAMESPACE_URL, "redis_state.agents"), name), as the docstring says.
    ours = uuid.uuid5(uuid.NAMESPACE_URL, "redis_state.agents")
    assert id_for("agent-7") == str(uuid.uuid5(ours, "agent-7"))
    assert AgentState(agent_id=id_for("agent-7")).agent_id == id_for("agent-7")
    assert execution_id_for("s", "order-42") != execution_id_for("t", "order-42")
    # One of version 7 is a UUID, and no name.
    seventh = "018f0000-0000-7000-8000-000000000001"
    assert id_for(seventh) == seventh
    assert execution_id_for("s", seventh) == seventh
    assert AgentState.from_dict({"agentId": seventh}).agent_id == seventh
    with pytest.raises(InvalidField, match="name"):
        id_for("")


def test_a_constructor_names_a_bad_field_without_quoting_it() -> None:
    values: dict[str, Any] = {"execution_count": "s3cret"}
    with pytest.raises(InvalidField) as caught:
        AgentState(**values)
    assert caught.value.field == "execution_count"
    assert "s3cret" not in str(caught.value)


def test_nothing_is_changed_in_place() -> None:
    state = AgentState().with_metadata(k=1)
    with pytest.raises(ValueError, match="frozen"):
        state.execution_count = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="with_"):
        state.context.metadata["k"] = 2
    for name in ("update", "pop", "clear", "setdefault", "popitem"):
        with pytest.raises(TypeError, match="with_"):
            getattr(state.context.metadata, name)()
    assert state.context.metadata == {"k": 1}
    assert pickle.loads(pickle.dumps(state)) == state  # noqa: S301 - made above


def test_an_api_key_is_not_shown_and_can_be_taken_out() -> None:
    state = AgentState(llm_config=LlmConfig(api_key="s3cret", model="m"))
    assert "s3cret" not in repr(state)
    assert "s3cret" not in str(state)
    assert state.to_dict()["llmConfig"]["apiKey"] == "s3cret"
    redacted = state.redacted()
    assert "s3cret" not in json.dumps(redacted.to_dict())
    assert redacted.updated_at == state.updated_at


def test_every_change_moves_the_date_and_leaves_the_original() -> None:
    state = AgentState()
    before = state.to_dict()
    later = [
        state.with_user_message("x"),
        state.with_metadata(a=1),
        state.with_system_prompt("p"),
        state.with_llm_config(None),
        state.with_new_execution(),
        state.with_current_step(step()),
        state.with_stop_signal(StopSignal()),
        state.with_continuation_requested(),
        state.with_execution_completed(),
        state.with_failure(ValueError("x")),
        state.for_next_execution(),
    ]
    assert all(each.updated_at > state.updated_at for each in later)
    assert state.to_dict() == before


def test_step_type_is_told_from_what_the_step_holds() -> None:
    call = ToolCall(name="t")
    failed = ToolExecution.failed(call, "boom")
    assert step(stated="done").step_type is AgentStepType.FINAL_RESPONSE
    assert step(call).step_type is AgentStepType.TOOL_EXECUTION
    assert step(call, tool_executions=(failed,)).step_type is AgentStepType.ERROR
    assert step(errors=(StepError(message="x"),)).step_type is AgentStepType.ERROR
    assert AgentStep().step_type is AgentStepType.FINAL_RESPONSE


def test_messages_of_a_step_are_tagged_and_traces_are_left_out_later() -> None:
    state = AgentState().with_new_execution()
    state = state.with_current_step(step(ToolCall(name="t"), stated="let me see"))
    trace = state.store.section("messages")[-1]
    assert state.execution is not None
    assert state.current_step is not None
    assert trace.metadata == {
        "step_id": state.current_step.id,
        "execution_id": state.execution.execution_id,
        "agent_id": state.agent_id,
        "is_trace": True,
    }
    assert trace in state.messages
    state = state.with_current_step_completed().with_current_step(step(stated="42"))
    answer = state.store.section("messages")[-1]
    assert "is_trace" not in answer.metadata
    assert state.final_response == "42\n"
    ended = state.with_execution_completed().for_next_execution()
    assert ended.messages == (answer,)
    assert trace in ended.store.section("messages")


def test_should_stop_weighs_signals_requests_and_tools() -> None:
    assert AgentState().should_stop
    running = AgentState().with_new_execution()
    calling = running.with_current_step(step(ToolCall(name="t")))
    assert not calling.should_stop
    assert running.with_current_step(step(stated="done")).should_stop
    stopped = calling.with_stop_signal(StopSignal(reason=StopReason.STEPS_LIMIT))
    assert stopped.should_stop
    assert not stopped.with_continuation_requested().should_stop
    assert calling.with_current_step_completed().should_stop


def test_an_execution_ends_as_its_errors_and_signals_say() -> None:
    running = AgentState().with_new_execution().with_current_step(step(stated="x"))
    forced = running.with_stop_signal(StopSignal(reason=StopReason.TIME_LIMIT))
    natural = running.with_stop_signal(StopSignal(reason=StopReason.FINISH_REASON))
    failing = running.with_current_step(step(errors=(StepError(message="x"),)))
    assert running.with_execution_completed().status is ExecutionStatus.COMPLETED
    assert forced.with_execution_completed().status is ExecutionStatus.STOPPED
    assert natural.with_execution_completed().status is ExecutionStatus.COMPLETED
    assert failing.with_execution_completed().status is ExecutionStatus.FAILED
    assert (
        failing.with_stop_signal(StopSignal(reason=StopReason.TIME_LIMIT))
        .with_execution_completed()
        .status
        is ExecutionStatus.FAILED
    )


def test_a_failure_without_a_step_is_kept() -> None:
    failed = AgentState().with_failure(ValueError("no model"))
    assert failed.status is ExecutionStatus.FAILED
    assert failed.has_errors
    assert [error.message for error in failed.errors] == ["no model"]
    assert failed.step_count == 1


def test_a_failure_drops_stop_signals_and_stays_failed() -> None:
    state = AgentState().with_current_step(step()).with_stop_signal(StopSignal())
    failed = state.with_failure(ValueError("x"))
    assert failed.stop_reason() is None
    assert failed.with_execution_completed().status is ExecutionStatus.FAILED


def test_the_order_of_reasons_can_be_chosen() -> None:
    state = AgentState().with_stop_signal(StopSignal(reason=StopReason.STEPS_LIMIT, source="g"))
    state = state.with_stop_signal(StopSignal(reason=StopReason.USER_REQUESTED, source="u"))
    assert state.stop_source() == "u"
    assert state.stop_source(GUIDE_PRIORITIES) == "g"


def test_a_step_signal_wins_a_tie_against_the_execution() -> None:
    running = AgentState().with_current_step(step())
    reported = running.with_stop_signal(StopSignal(source="step")).with_current_step_completed()
    assert reported.execution is not None
    fresh = reported.execution.continuation.changed(
        stop_signals=type(reported.execution.continuation.stop_signals)()
    )
    later = reported.with_execution(reported.execution.with_continuation(fresh))
    assert later.with_stop_signal(StopSignal(source="execution")).stop_source() == "step"


def test_usage_counts_all_steps_and_all_kinds() -> None:
    state = AgentState().with_current_step(step()).with_current_step_completed()
    state = state.with_current_step(step())
    assert state.usage.to_dict() == {
        "input": 6,
        "output": 4,
        "cacheWrite": 0,
        "cacheRead": 0,
        "reasoning": 0,
    }
    assert state.usage.total == 10


def test_debug_has_the_keys_of_the_original() -> None:
    assert list(AgentState().debug()) == [
        "status",
        "executionCount",
        "hasExecution",
        "executionId",
        "steps",
        "continuation",
        "hasErrors",
        "errors",
        "usage",
    ]


def test_a_budget_knows_what_is_set_and_what_is_used_up() -> None:
    assert ExecutionBudget.unlimited().is_empty
    assert not ExecutionBudget(max_steps=0).is_empty
    assert ExecutionBudget(max_steps=5, max_cost=0.0).is_exhausted()
    assert ExecutionBudget(deadline=now()).is_exhausted()
    assert not ExecutionBudget(max_steps=1).is_exhausted()
    written = {"maxSteps": 20, "maxTokens": None, "maxSeconds": 1.5, "maxCost": None}
    budget = ExecutionBudget.from_dict(written | {"deadline": "2025-12-31T23:59:59+00:00"})
    assert budget.to_dict() == written | {"deadline": "2025-12-31T23:59:59+00:00"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
maps = st.dictionaries(st.text(max_size=6), json_values, max_size=4)


@given(unknown=maps, metadata=maps | st.just([]), body=json_values, arguments=maps)
def test_any_payload_survives_reading_writing_and_a_change_elsewhere(
    unknown: dict[str, Any], metadata: Any, body: Any, arguments: dict[str, Any]
) -> None:
    answer: dict[str, Any] = {
        "responseData": {"body": body, "headers": []},
        "toolCalls": [{"name": "t", "arguments": arguments}],
    }
    current: dict[str, Any] = {"inferenceResponse": answer} | {
        f"x-{key}": value for key, value in unknown.items()
    }
    payload: dict[str, Any] = {
        "agentId": "00000001-0000-4000-8000-000000000001",
        "context": {"metadata": metadata},
        "execution": {
            "executionId": "00000001-0000-4000-8000-000000000001",
            "currentStep": current,
        },
    }
    state = AgentState.from_dict(payload)
    assert isinstance(state.execution, ExecutionState)
    for each in (state, state.with_user_message("x"), state.with_stop_signal(StopSignal())):
        written = each.to_dict()
        assert written["execution"]["currentStep"] == current
        assert written["context"]["metadata"] == metadata


@pytest.mark.parametrize(
    "name",
    [
        "api-key",
        "apiKey2",
        "sig",
        "code",
        "access_token",
        "token_1",
        "pwd",
        "pass",
        "passphrase",
        "jwt",
        "id_jwt",
        "Bearer",
        "otp",
        "sas",
        "pat",
        "client_assertion",
        "cookie",
        "auth",
    ],
)
def test_a_parameter_that_is_named_as_a_secret_is_redacted(name: str) -> None:
    model = LlmConfig(query_params=FrozenMap({name: "s3cr3t", "api-version": "1", "region": "eu"}))
    shown = model.redacted().query_params
    assert (shown["api-version"], shown["region"]) == ("1", "eu")
    assert "s3cr3t" not in str(shown)
    assert model.secrets == ["s3cr3t"]
