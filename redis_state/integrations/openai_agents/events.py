"""What agents do, in the session's log: the text of models, calls of tools and their results.

Text leaves in rows of some 40 ms, see `TaskContext.text`. A request that is made again writes
another generation of its text, which replaces the first. A tool's call and result are one update
each, with a key that is the same in every run. So a replay publishes nothing twice.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from agents.items import TResponseStreamEvent

from redis_state.errors import BackendError
from redis_state.integrations.agent_runs.running import end_run
from redis_state.integrations.agent_runs.scopes import joined
from redis_state.integrations.agent_runs.texts import OpenTexts
from redis_state.integrations.openai_agents.terms import AgentRun
from redis_state.models import UpdateType
from redis_state.serialization import codec

_KINDS = {
    "response.output_text": UpdateType.RESULT,
    "response.refusal": UpdateType.RESULT,
    "response.reasoning_text": UpdateType.THINKING,
    "response.reasoning_summary_text": UpdateType.THINKING,
}


class ResponseTexts:
    """The texts of one response that are being written, by their place in it."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._texts = OpenTexts[tuple[object, ...]]()

    async def __aenter__(self) -> Self:
        await self._texts.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._texts.__aexit__(kind, error, traceback)

    async def show(self, event: TResponseStreamEvent) -> None:
        """Publish what an event has of a text."""
        of, _, what = event.type.rpartition(".")
        if of not in _KINDS or not self._run.terms.publish:
            return
        index = getattr(event, "content_index", getattr(event, "summary_index", 0))
        place = (of, getattr(event, "output_index", 0), index)
        if what == "delta":
            await self._write(place, of, str(getattr(event, "delta", "")))
        elif what == "done":
            await self._texts.end(place)

    async def _write(self, place: tuple[object, ...], of: str, text: str) -> None:
        if place not in self._texts:
            writer = self._run.scope.ctx.text(self._run.agent, kind=_KINDS[of])
            await self._texts.begin(place, writer)
        await self._texts.write(place, text)


async def publish_tool(run: AgentRun, place: str, about: dict[str, Any]) -> None:
    """Publish the call of a tool at a place, or with a ``result`` its end."""
    if not run.terms.publish:
        return
    kind = "result" if "result" in about else "call"
    content = {**about, "agent": run.agent}
    try:
        await run.scope.ctx.emit(UpdateType.TOOL_CALL, content, key=joined(place, f"{kind} event"))
    except BackendError as error:
        end_run(run.scope, error)
        raise


def arguments_of(text: str | None) -> Any:
    """Return a call's arguments as a model gave them, which may be no JSON."""
    try:
        return codec.decode((text or "null").encode())
    except (codec.DecodeError, ValueError):
        return text
