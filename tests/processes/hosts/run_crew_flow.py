"""Run a flow of CrewAI of two methods; without `ends` the second one never does.

Its environment is that of the test, in which CrewAI calls nobody.
"""

from __future__ import annotations

import json
import sys
import threading
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from redis_state.integrations.crewai import RedisStateFlowPersistence

crewai: Any = import_module("crewai.flow.flow")
persisted: Any = import_module("crewai.flow.persistence")
argument: dict[str, Any] = json.loads(sys.argv[1])
persistence: Any = RedisStateFlowPersistence(
    url=SecretStr(argument["url"]), options={"namespace": argument["namespace"]}
)


@persisted.persist(persistence)
class Two(crewai.Flow):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Two methods, each of which notes that it is done."""

    @crewai.start()
    def first(self) -> None:
        """Note it."""
        self.state["done"] = [*self.state.get("done", []), "first"]

    @crewai.listen(first)
    def second(self) -> None:
        """Say that it begins, and end or stay."""
        print("second begins", flush=True)  # noqa: T201
        if not argument.get("ends"):
            threading.Event().wait()
        self.state["done"] = [*self.state["done"], "second"]


if __name__ == "__main__":
    Two(persistence=persistence, suppress_flow_events=True).kickoff(inputs={"id": "flow"})
