"""Nobody's copy is the state's own memory: masking what a log is given changes nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from redis_state.agents import (
    AgentContext,
    AgentDefinition,
    AgentSession,
    AgentState,
    FrozenMap,
    LlmConfig,
    Message,
    Messages,
    MessageStore,
    ResponseData,
    ResponseFormat,
    StopSignal,
    ToolCall,
)
from redis_state.agents.state.wire.wire import Wire
from redis_state.models.traces.planner import Trajectory, TrajectoryStep
from redis_state.serialization import codec
from tests.support.agents.sessions import stepped

HELD: dict[str, Any] = {"list": [1, {"deep": [2]}], "map": {"key": ["s3cr3t"]}, "text": "x"}


def masked(value: Any) -> None:
    """Change every dict and list of a value in place, all the way down."""
    kind = codec.kind_of(value)
    if kind is dict or kind is FrozenMap:
        for inner in value.values():
            masked(inner)
        value.clear()
        value["masked"] = True
    elif kind is list or hasattr(value, "append"):
        for inner in value:
            masked(inner)
        value[:] = ["masked"]


def session() -> AgentSession:
    model = LlmConfig(api_key="s3cr3t", query_params=FrozenMap(HELD), options=FrozenMap(HELD))
    definition = AgentDefinition(name="a", tools=("t",), metadata=FrozenMap(HELD), llm_config=model)
    message = Message(content=({"type": "text", **HELD},), metadata=FrozenMap(HELD))
    state = AgentState(llm_config=model).with_messages([message]).with_metadata(**HELD)
    state = stepped(state.with_stop_signal(StopSignal(context=FrozenMap(HELD))), 1)
    return AgentSession.fresh(definition, session_id="s", state=state)


def from_json() -> AgentSession:
    """Give a session that was read: its parts remember what they were read from."""
    data = session().to_dict()
    data["state"]["unknown"] = copy.deepcopy(HELD)
    return AgentSession.from_dict(data)


def looked_at() -> AgentSession:
    read = from_json()
    assert len(read.state.steps) == 1
    return read


PARTS: dict[str, Callable[[AgentSession], Any]] = {
    "session": lambda each: each,
    "definition": lambda each: each.definition,
    "state": lambda each: each.state,
    "context": lambda each: each.state.context,
    "message": lambda each: each.state.store.section("messages")[0],
    "step": lambda each: each.state.steps[0],
    "model": lambda each: each.state.llm_config,
}


@pytest.mark.parametrize("make", [session, from_json, looked_at])
@pytest.mark.parametrize("name", PARTS)
def test_what_to_dict_gives_belongs_to_whoever_asked(
    make: Callable[[], AgentSession], name: str
) -> None:
    whole = make()
    part: Wire = PARTS[name](whole)
    before, whole_before = copy.deepcopy(part.to_dict()), copy.deepcopy(whole.to_dict())
    masked(part.to_dict())
    assert part.to_dict() == before
    assert whole.to_dict() == whole_before
    stated = whole.state.store.sections[0].messages
    masked(stated.to_list())
    assert whole.to_dict() == whole_before


def test_what_a_state_was_read_from_is_the_callers() -> None:
    data = session().to_dict()
    read = AgentSession.from_dict(data)
    before = copy.deepcopy(data)
    masked(data)
    assert read.to_dict() == before
    assert read.state.steps[0].requested_calls


GIVEN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "metadata": (lambda v: AgentContext(metadata=v), lambda p: p.metadata),
    "with_metadata": (lambda v: AgentState().with_metadata(k=v), lambda p: p.context.metadata["k"]),
    "message": (lambda v: Message(metadata=v), lambda p: p.metadata),
    "tagged": (lambda v: Message().with_metadata(k=v), lambda p: p.metadata["k"]),
    "content": (lambda v: Message(content=(v,)), lambda p: p.content[0]),
    "arguments": (lambda v: ToolCall(name="t", arguments=v), lambda p: p.arguments),
    "parameters": (lambda v: MessageStore(parameters=v), lambda p: p.parameters),
    "signal": (lambda v: StopSignal(context=v), lambda p: p.context),
    "body": (lambda v: ResponseData(body=v), lambda p: p.body),
    "schema": (lambda v: ResponseFormat(schema_=v), lambda p: p.schema_),
    "options": (lambda v: LlmConfig(options=v), lambda p: p.options),
    "definition": (lambda v: AgentDefinition(name="a", metadata=v), lambda p: p.metadata),
    "map": (FrozenMap, lambda p: p),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_was_given_is_kept_as_it_was_and_cannot_be_changed(name: str) -> None:
    give, held = GIVEN[name]
    given = copy.deepcopy(HELD)
    part = give(given)
    masked(given)
    kept = held(part)
    assert kept == HELD
    for change in (
        lambda: kept.update(x=1),
        lambda: kept["list"].append(1),
        lambda: kept["list"].__setitem__(0, 2),
        lambda: kept["list"].__iadd__([1]),
        kept["list"][1].clear,
        kept["list"][1]["deep"].sort,
        lambda: kept["map"]["key"].__delitem__(0),
        lambda: masked(kept),
    ):
        with pytest.raises(TypeError, match="with_"):
            change()
    assert kept == HELD
    # A copy is as it should be: equal, and of its own.
    assert copy.deepcopy(kept) == HELD
    plain = kept.to_dict()
    masked(plain)
    assert kept == HELD


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "append": (1,),
    "extend": ([1],),
    "insert": (0, 1),
    "remove": (1,),
}


def test_every_way_to_change_a_list_is_refused() -> None:
    kept = FrozenMap(a=[2, 1])["a"]
    for change in ("append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"):
        with pytest.raises(TypeError, match="with_"):
            getattr(kept, change)(*ARGUMENTS.get(change, ()))
    assert kept == [2, 1]


def test_what_a_trajectory_is_written_as_belongs_to_whoever_asked() -> None:
    step = TrajectoryStep({"next_node": "n", "args": copy.deepcopy(HELD)}, extra={"more": [HELD]})
    run = Trajectory("q", metadata=copy.deepcopy(HELD), steps=[step], tool_context={"self": None})
    run.metadata["self"] = run.metadata
    before = Trajectory("q", metadata=copy.deepcopy(HELD), steps=[copy.deepcopy(step)])
    written = run.serialise()
    written["metadata"]["list"].append("masked")
    written["metadata"]["self"]["map"].clear()
    masked(written["steps"])
    del run.metadata["self"]
    assert (run.metadata, run.steps) == (before.metadata, before.steps)


def test_messages_cannot_be_told_to_hold_anything_else() -> None:
    for items in ([1], [b"{}"], [{"content": "x"}], [None]):
        given: Any = items
        with pytest.raises(ValueError, match=r"Messages\[0\]: Message is needed"):
            Messages(given)
