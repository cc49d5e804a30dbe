"""A chat model of LangChain that streams what a test scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

Hook = Callable[[int], Awaitable[object]]


class ScriptedChat(BaseChatModel):
    """Streams chunks; before each it awaits the hook, with the number of the chunk."""

    chunks: Sequence[Any]
    before: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> Any:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("not streamed"))])

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for number, chunk in enumerate(self.chunks):
            if self.before is not None:
                await self.before(number)
            # LangChain writes into what it is given.
            yield ChatGenerationChunk(message=chunk.model_copy(deep=True))


def tokens(count: int, *, of: str = "t", message_id: str | None = "m") -> list[AIMessageChunk]:
    """Return chunks of a text, which is their numbers."""
    return [AIMessageChunk(content=f"{of}{number} ", id=message_id) for number in range(count)]


def called(*chunks: AIMessageChunk, before: Hook | None = None) -> Any:
    """Return what compiles a graph whose one node calls a model that streams chunks."""
    model = ScriptedChat(chunks=chunks, before=before)

    async def call(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("call", call)
        graph.add_edge(START, "call")
        graph.add_edge("call", END)
        return graph.compile(checkpointer=saver)

    return build
