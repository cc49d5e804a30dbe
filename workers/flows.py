"""The pool's tasks for PenguiFlow: a flow that counts words, and the same flow kept running."""

from __future__ import annotations

from typing import Any

from penguiflow import Message, Node, NodePolicy, PenguiFlow, create

from redis_state.integrations.penguiflow import PenguiflowStateStore
from redis_state.integrations.penguiflow.flows import flow_handler, kept_flow_handler
from redis_state.worker import Handler


def build_flow(store: PenguiflowStateStore) -> PenguiFlow:
    """Make a flow that reads the text of its message and counts the words."""

    async def split(message: Message, _: Any) -> Message:
        return message.model_copy(update={"payload": str(message.payload).split()})

    async def count(message: Message, _: Any) -> Message:
        return message.model_copy(update={"payload": {"words": len(message.payload)}})

    policy = NodePolicy(validate="none")
    first, second = (Node(each, name=each.__name__, policy=policy) for each in (split, count))
    return create(first.to(second), state_store=store)


FLOWS: dict[str, Handler] = {
    "count_words": flow_handler(build_flow),
    "count_words_kept": kept_flow_handler(build_flow),
}
