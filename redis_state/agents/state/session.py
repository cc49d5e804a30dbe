"""An agent's session: what the agent is, how far it is, and at which version that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, cast

from pydantic import Field, PrivateAttr

from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.budget import ExecutionBudget
from redis_state.agents.state.context import AgentContext
from redis_state.agents.state.ids import check_session_id, new_id
from redis_state.agents.state.inference import LlmConfig
from redis_state.agents.state.messages import MessageStore
from redis_state.agents.state.wire.frozen import EMPTY, FrozenMap
from redis_state.agents.state.wire.kinds import (
    instance,
    integer,
    many,
    mapping,
    model,
    moment,
    one_of,
    optional,
    same,
    text,
    text_or_none,
)
from redis_state.agents.state.wire.wire import Kind, Slot, Wire, now


class SessionStatus(StrEnum):
    """The status of a session. A label: every session can be saved and executed."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


def _read_parent(value: Any, place: str) -> str | None:
    return check_session_id(value, place) if isinstance(value, str) and value else None


def _check_parent(value: Any, place: str) -> str | None:
    return check_session_id(value, place) if text_or_none.check(value, place) else None


_session_id = Kind(check_session_id, same, check_session_id)
_parent_id = Kind(_read_parent, same, _check_parent)


class SessionHeader(Wire):
    """What a listing shows of a session. ``version`` is 0 until it is stored."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("session_id", "sessionId", _session_id),
        Slot("parent_id", "parentId", _parent_id, lambda: None),
        Slot("status", "status", one_of(SessionStatus), lambda: SessionStatus.ACTIVE),
        Slot("version", "version", integer, int),
        Slot("agent_name", "agentName", text, str),
        Slot("agent_label", "agentLabel", text, str),
        Slot("created_at", "createdAt", moment, now),
        Slot("updated_at", "updatedAt", moment, now),
    )

    session_id: str = Field(default_factory=new_id)
    parent_id: str | None = None
    status: SessionStatus = SessionStatus.ACTIVE
    version: int = 0
    agent_name: str = ""
    agent_label: str = ""
    created_at: datetime = Field(default_factory=now)
    updated_at: datetime = Field(default_factory=now)


def _read_llm(value: Any, place: str) -> LlmConfig | str | None:
    if isinstance(value, Mapping):
        return LlmConfig.of_wire(cast("Mapping[str, Any]", value), place=place)
    return value if isinstance(value, str) else None


def _read_budget(value: Any, place: str) -> ExecutionBudget | None:
    if isinstance(value, Mapping):
        return ExecutionBudget.of_wire(cast("Mapping[str, Any]", value), place=place)
    return ExecutionBudget() if isinstance(value, list) else None


_names = many(text)


def _check_llm(value: Any, place: str) -> LlmConfig | str | None:
    if value is None or isinstance(value, LlmConfig):
        return value
    return cast("str", text.check(value, place))


_llm = Kind(
    _read_llm, lambda value: value.wire() if isinstance(value, LlmConfig) else value, _check_llm
)
_maybe_budget = optional(model(ExecutionBudget))
_budget = Kind(_read_budget, _maybe_budget.write, _maybe_budget.check)
_metadata = Kind(
    lambda value, place: EMPTY if value is None else mapping.read(value, place),
    mapping.write,
    mapping.check,
)


class AgentDefinition(Wire):
    """What an agent is made from. ``llm_config`` is a model, or the name of a preset.

    ``tools`` None allows all tools, an empty list none. Without a label its name is one.
    """

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("name", "name", text, str),
        Slot("label", "label", text_or_none, lambda: None, legacy=("title",)),
        Slot("description", "description", text, str),
        Slot("system_prompt", "systemPrompt", text, str),
        Slot("llm_config", "llmConfig", _llm, lambda: None),
        Slot("tools", "tools", optional(_names), lambda: None),
        Slot("tools_deny", "toolsDeny", optional(_names), lambda: None),
        Slot("skills", "skills", optional(_names), lambda: None),
        Slot("budget", "budget", _budget, lambda: None),
        Slot("capabilities", "capabilities", _names, tuple),
        Slot("metadata", "metadata", _metadata, lambda: EMPTY),
    )

    name: str
    label: str | None = None
    description: str = ""
    system_prompt: str = ""
    llm_config: LlmConfig | str | None = None
    tools: tuple[str, ...] | None = None
    tools_deny: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    budget: ExecutionBudget | None = None
    capabilities: tuple[str, ...] = ()
    metadata: FrozenMap = EMPTY

    def __init__(self, **values: Any) -> None:
        super().__init__(**({"label": values.get("name")} | values))

    def allows(self, tool: str) -> bool:
        """Return whether the agent may use a tool."""
        return (self.tools is None or tool in self.tools) and tool not in (self.tools_deny or ())

    def redacted(self) -> AgentDefinition:
        """Return it without the key of its model."""
        config = self.llm_config
        if not isinstance(config, LlmConfig):
            return self
        return self.replaced(llm_config=config.redacted())


class AgentSession(Wire):
    """A session: header, definition and state. Every ``with_*`` returns a new one.

    The version moves only when a store saves it.
    """

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("header", "header", model(SessionHeader)),
        Slot("definition", "definition", model(AgentDefinition)),
        Slot("state", "state", model(AgentState)),
    )

    header: SessionHeader
    definition: AgentDefinition
    state: AgentState

    # What its store holds of it, so that a save finds what is new.
    _stored: object = PrivateAttr(default=None)

    @classmethod
    def fresh(
        cls,
        definition: AgentDefinition,
        *,
        session_id: str | None = None,
        parent_id: str | None = None,
        state: AgentState | None = None,
    ) -> AgentSession:
        """Begin a session, to be created in a store. Errors: InvalidField, for a bad id too."""
        given: AgentDefinition = instance(AgentDefinition)(definition, "definition")
        config = given.llm_config
        header = SessionHeader(
            session_id=check_session_id(session_id or new_id()),
            parent_id=parent_id and check_session_id(parent_id, "parent_id"),
            agent_name=definition.name,
            agent_label=definition.label or definition.name,
        )
        begun = AgentState(
            context=AgentContext(system_prompt=definition.system_prompt),
            llm_config=config if isinstance(config, LlmConfig) else None,
        )
        return cls(header=header, definition=definition, state=state or begun)

    @property
    def session_id(self) -> str:
        """Its id."""
        return self.header.session_id

    @property
    def version(self) -> int:
        """The version at which it was loaded or saved; 0 if it never was."""
        return self.header.version

    @property
    def status(self) -> SessionStatus:
        """Its status."""
        return self.header.status

    @property
    def stored(self) -> object:
        """What its store has recorded of it."""
        return self._stored

    def remembering(self, stored: object) -> AgentSession:
        """Return it with a note of the store that has it."""
        kept = self.changed()
        kept._stored = stored  # noqa: SLF001 - its own class
        return kept

    def with_state(self, state: AgentState) -> AgentSession:
        """Return it with another state. Its status stays, also when an execution failed."""
        return self.changed(state=state, header=self.header.changed(updated_at=now()))

    def with_status(self, status: SessionStatus) -> AgentSession:
        """Return it under another status. Any may follow any."""
        return self.changed(header=self.header.changed(status=status, updated_at=now()))

    def with_definition(self, definition: AgentDefinition) -> AgentSession:
        """Return it with another definition. Its state keeps the prompt and model that it has."""
        return self.changed(definition=definition)

    def suspended(self) -> AgentSession:
        """Return it suspended."""
        return self.with_status(SessionStatus.SUSPENDED)

    def resumed(self) -> AgentSession:
        """Return it active, whatever it was."""
        return self.with_status(SessionStatus.ACTIVE)

    def cleared(self) -> AgentSession:
        """Return it without its conversation and its execution; the rest stays."""
        context = self.state.context.with_store(MessageStore())
        return self.with_state(self.state.for_next_execution().with_context(context))

    def forked(self, session_id: str | None = None) -> AgentSession:
        """Return a new session, to be created, that begins with all this one knows."""
        return AgentSession.fresh(
            self.definition,
            session_id=session_id,
            parent_id=self.session_id,
            state=self.state.for_next_execution(),
        )

    def redacted(self) -> AgentSession:
        """Return it without the keys of its models, and without the records of its store."""
        redacted = {"definition": self.definition.redacted(), "state": self.state.redacted()}
        return self.replaced(**redacted).remembering(None)

    def with_keys_of(self, other: AgentSession) -> AgentSession:
        """Return it with the keys of another's models where its own are redacted."""
        definition, state = self.definition, self.state
        mine, others = definition.llm_config, other.definition.llm_config
        if isinstance(mine, LlmConfig) and isinstance(others, LlmConfig):
            definition = definition.changed(llm_config=mine.with_keys_of(others))
        if state.llm_config is not None and other.state.llm_config is not None:
            config = state.llm_config.with_keys_of(other.state.llm_config)
            state = state.changed(llm_config=config)
        return self.changed(definition=definition, state=state)
