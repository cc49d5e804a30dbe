"""A refund in two methods: a person decides after the first one. One step of it in this process.

python -m examples.crewai.refund <url> ask|answer <flow>
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from redis_state.integrations.crewai import RedisStateFlowPersistence

crewai: Any = import_module("crewai.flow.flow")
feedback: Any = import_module("crewai.flow.async_feedback.types")
human: Any = import_module("crewai.flow.human_feedback")


class Later:
    """Stands for a message to a person, who answers when they like."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        """Let the flow pause; CrewAI saves it."""
        del flow
        raise feedback.HumanFeedbackPending(context=context)


class Refund(crewai.Flow):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Looks up an order, and pays when a person has said yes."""

    @crewai.start()
    @human.human_feedback(message="Pay 20 euros back?", provider=Later())
    def look_up(self) -> str:
        """Note what was looked up."""
        self.state["looked up"] = self.state.get("looked up", 0) + 1
        return "order 7: 20 euros"

    @crewai.listen(look_up)
    def pay(self, result: Any) -> str:
        """Pay, and say how often the order was looked up."""
        times = self.state["looked up"]
        return f"{result.output}: {result.feedback}, looked up {times} time(s)"


def main(url: str, what: str, flow_id: str) -> None:
    """Ask and stay, or answer what another process has asked."""
    persistence: Any = RedisStateFlowPersistence(url=url)
    if what == "ask":
        Refund(persistence=persistence, suppress_flow_events=True).kickoff(inputs={"id": flow_id})
        print("asked", flush=True)
        threading.Event().wait()
    flow = Refund.from_pending(flow_id, persistence, suppress_flow_events=True)
    print(flow.resume("yes"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
