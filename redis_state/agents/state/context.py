"""What an agent knows: its conversation, its instructions, and notes of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from redis_state.agents.state.inference import ResponseFormat, response_format
from redis_state.agents.state.messages import MESSAGES, Message, MessageStore
from redis_state.agents.state.wire.frozen import EMPTY, FrozenMap
from redis_state.agents.state.wire.kinds import mapping, model, text
from redis_state.agents.state.wire.wire import Slot, Wire


class AgentContext(Wire):
    """Conversation, system prompt, metadata and the form of answers. It outlives executions."""

    slots: ClassVar[tuple[Slot, ...]] = (
        Slot("metadata", "metadata", mapping, lambda: EMPTY),
        Slot("system_prompt", "systemPrompt", text, str),
        Slot("response_format", "responseFormat", response_format, ResponseFormat),
        Slot("store", "messageStore", model(MessageStore), MessageStore),
    )

    metadata: FrozenMap = EMPTY
    system_prompt: str = ""
    response_format: ResponseFormat = ResponseFormat()
    store: MessageStore = MessageStore()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that are put before a model."""
        return self.store.compiled

    def messages_for(self, execution_id: str | None) -> tuple[Message, ...]:
        """Leave out what was on the way to earlier answers; between executions, all of that."""
        return tuple(
            message
            for message in self.messages
            if not message.is_trace
            or (execution_id is not None and message.metadata.get("execution_id") == execution_id)
        )

    def with_messages(
        self, messages: Iterable[Message], *, section: str = MESSAGES
    ) -> AgentContext:
        """Return it with messages added to a section."""
        return self.changed(store=self.store.with_added(messages, section=section))

    def with_store(self, store: MessageStore) -> AgentContext:
        """Return it with another conversation."""
        return self.changed(store=store)

    def with_metadata(self, **values: Any) -> AgentContext:
        """Return it with more metadata."""
        return self.changed(metadata=self.metadata | values)

    def with_system_prompt(self, prompt: str) -> AgentContext:
        """Return it with other instructions."""
        return self.changed(system_prompt=prompt)

    def with_response_format(self, form: ResponseFormat) -> AgentContext:
        """Return it with another form of answers."""
        return self.changed(response_format=form)
