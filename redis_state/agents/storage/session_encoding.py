"""The layout of a session's hash: a head that each save writes, and parts written once.

    header, definition   what listings show, and the agent's definition
    head                 the state without the completed steps and the conversation
    parts                how many there are of which kind
    s:<n>                the nth completed step
    m<k>:<n>             the nth message of the kth section

A part that has not changed since the session was read or saved is the same object. So new parts are
found without reading any, and the rest stays on the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.messages import Message, Messages
from redis_state.agents.state.session import AgentDefinition, AgentSession, SessionHeader
from redis_state.agents.state.steps import StepExecution, StepExecutions
from redis_state.agents.state.wire.kinds import instance
from redis_state.agents.state.wire.lazy_parts import check_all, data_of, written
from redis_state.agents.state.wire.wire import Wire
from redis_state.agents.storage.protection import Protection
from redis_state.errors import InvalidField
from redis_state.serialization import codec

PartLists: TypeAlias = Mapping[str, Sequence[Any]]

_messages = instance(Messages)
_steps = instance(StepExecutions)


@dataclass(frozen=True, slots=True)
class StoredImage:
    """What the store holds of a session: of which write, and which objects its parts are.

    ``definition`` is None if it is to be written again whatever it is.
    """

    session_id: str
    version: int
    write: str
    definition: AgentDefinition | None
    parts: PartLists

    def is_base_of(self, session: AgentSession) -> bool:
        """Return whether this is the version that the session was made from."""
        return (self.session_id, self.version) == (session.session_id, session.version)


@dataclass(frozen=True, slots=True)
class Found:
    """A session as it was read. ``sealed``: its definition stands as a save would write it."""

    session: AgentSession
    parts: PartLists
    sealed: bool


@dataclass(frozen=True, slots=True)
class SessionWrite:
    """What a save writes: fields, and the names of those that go."""

    fields: dict[str, bytes]
    dropped: list[str]
    parts: PartLists


def change_of(
    session: AgentSession, header: SessionHeader, base: StoredImage | None, protection: Protection
) -> SessionWrite:
    """Return what is new in a session since ``base``; all of it without one.

    What is to be written is read before it is. Errors: InvalidField names what nobody could read.
    """
    try:
        for slot in session.slots:
            slot.kind.check(getattr(session, slot.field), slot.key)
        return _change_of(session, header, base, protection)
    except Exception:
        check_all(session)
        raise


def _change_of(
    session: AgentSession, header: SessionHeader, base: StoredImage | None, protection: Protection
) -> SessionWrite:
    parts = _parts_of(session.state)
    names = [section.name for section in session.state.store.sections]
    if len(set(names)) < len(names):  # a reader puts them together
        raise InvalidField("state.context.messageStore.sections", "two have the same name")
    head = protection.seal(_without_parts(session.state).wire())
    fields = {
        "header": written(header.wire(), SessionHeader, "header"),
        "head": written(head, AgentState, "state"),
        "parts": codec.encode({name: len(items) for name, items in parts.items()}),
    }
    if base is None or base.definition is not session.definition:
        definition = protection.seal(session.definition.wire())
        fields["definition"] = written(definition, AgentDefinition, "definition")
    known: PartLists = base.parts if base else {}
    for name, items in parts.items():
        were, kind, place = known.get(name, ()), *part_kind(name)
        for at, item in enumerate(items):
            if at >= len(were) or were[at] is not item:
                fields[f"{name}:{at}"] = data_of(item, kind, f"{place}[{at}]")
    return SessionWrite(fields, list(_gone(known, parts)), parts)


def read_session(fields: Mapping[bytes, bytes], protection: Protection) -> Found:
    """Read a session; its parts are not looked into.

    Errors: InvalidField, codec.DecodeError, KeyError for a part that is missing.
    """
    parts: dict[str, list[bytes]] = {}
    for name, count in _object("parts", fields).items():
        prefix = name.encode() + b":"
        parts[name] = [fields[prefix + b"%d" % place] for place in range(_count(name, count))]
    definition = _object("definition", fields)
    session = AgentSession(
        header=read_header(fields[b"header"]),
        definition=AgentDefinition.of_wire(protection.open(definition), place="definition"),
        state=_with_parts(
            AgentState.of_wire(protection.open(_object("head", fields)), place="state"), parts
        ),
    )
    return Found(session, _parts_of(session.state), protection.seal(definition) == definition)


def read_header(data: bytes) -> SessionHeader:
    """Read a header. Errors: InvalidField, codec.DecodeError."""
    return SessionHeader.of_wire(codec.decode(data), place="header")


def _gone(known: PartLists, parts: PartLists) -> Iterator[str]:
    for name, were in known.items():
        for place in range(len(parts.get(name, ())), len(were)):
            yield f"{name}:{place}"


def _parts_of(state: AgentState) -> dict[str, Sequence[Any]]:
    parts: dict[str, Sequence[Any]] = {
        f"m{k}": _messages(section.messages, "messages").items
        for k, section in enumerate(state.store.sections)
    }
    if state.execution is not None:
        parts["s"] = _steps(state.execution.step_executions, "stepExecutions").items
    return parts


def part_kind(name: str) -> tuple[type[Wire], str]:
    """Return what the parts of a name are, and where in a session they stand."""
    if name == "s":
        return StepExecution, "state.execution.stepExecutions"
    return Message, f"state.context.messageStore.sections[{name[1:]}].messages"


def _without_parts(state: AgentState) -> AgentState:
    return _replaced(state, [Messages() for _ in state.store.sections], StepExecutions())


def _with_parts(state: AgentState, parts: PartLists) -> AgentState:
    sections = [
        Messages.held(parts.get(f"m{k}", ()), place=part_kind(f"m{k}")[1])
        for k in range(len(state.store.sections))
    ]
    steps = StepExecutions.held(parts.get("s", ()), place=part_kind("s")[1])
    return _replaced(state, sections, steps)


def _replaced(state: AgentState, lists: Sequence[Messages], steps: StepExecutions) -> AgentState:
    store = state.store
    if lists:
        sections = tuple(
            section.changed(messages=messages)
            for section, messages in zip(store.sections, lists, strict=True)
        )
        state = state.changed(context=state.context.with_store(store.changed(sections=sections)))
    if state.execution is None:
        return state
    return state.changed(execution=state.execution.changed(step_executions=steps))


def _count(name: str, count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidField(f"parts.{name}", "a number from 0 is needed")
    return count


def _object(name: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    found: Any = codec.decode(fields[name.encode()])
    if not isinstance(found, dict):
        raise InvalidField(name, "an object is needed")
    return cast("dict[str, Any]", found)
