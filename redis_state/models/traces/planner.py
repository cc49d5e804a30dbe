"""What a planner leaves behind: its events and the trajectory of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from redis_state.errors import InvalidField
from redis_state.serialization.lossy import unshared


@dataclass(frozen=True, slots=True)
class PlannerEvent:
    """One event of a planner run. It has no id, and ``ts`` may be a monotonic clock's."""

    event_type: str
    ts: float
    trajectory_step: int
    thought: str | None = None
    node_name: str | None = None
    latency_ms: float | None = None
    token_estimate: int | None = None
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class TrajectoryStep:
    """One action and what came of it. ``extra`` holds keys this version does not know."""

    action: Any
    observation: Any = None
    error: str | None = None
    failure: Mapping[str, Any] | None = None
    llm_observation: Any = None
    streams: Mapping[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def serialise(self) -> dict[str, Any]:
        """Return the step as an object. Its dicts and lists are copies."""
        content: dict[str, Any] = {
            "action": self.action,
            "observation": self.observation,
            "error": self.error,
            "failure": self.failure,
        }
        if self.llm_observation is not None:
            content["llm_observation"] = self.llm_observation
        if self.streams is not None:
            content["streams"] = self.streams
        return cast("dict[str, Any]", unshared(content | self.extra))

    @classmethod
    def from_serialised(cls, content: Mapping[str, Any]) -> TrajectoryStep:
        """Rebuild a step. Raises ``InvalidField`` without an action."""
        if "action" not in content:
            raise InvalidField("steps", "a step without an action")
        return cls(**_split(cls, content))


@dataclass(slots=True)
class Trajectory:
    """The record of one planner run. ``extra`` holds keys this version does not know."""

    query: str
    llm_context: Mapping[str, Any] | None = None
    tool_context: dict[str, Any] | None = None
    input_parts: list[Any] = field(default_factory=list[Any])
    artifacts: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[TrajectoryStep] = field(default_factory=list[TrajectoryStep])
    summary: dict[str, Any] | None = None
    hint_state: dict[str, Any] = field(default_factory=dict[str, Any])
    resume_user_input: str | None = None
    steering_inputs: list[str] = field(default_factory=list[str])
    background_results: dict[str, Any] = field(default_factory=dict[str, Any])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def serialise(self) -> dict[str, Any]:
        """Return the trajectory as an object. Its dicts and lists are copies."""
        known = {name: getattr(self, name) for name in _known(type(self))}
        steps = [step.serialise() for step in self.steps]
        return cast("dict[str, Any]", unshared(known | {"steps": steps} | self.extra))

    @classmethod
    def from_serialised(cls, content: Mapping[str, Any]) -> Trajectory:
        """Rebuild a trajectory. Raises ``InvalidField`` without a query or with malformed steps."""
        if "query" not in content:
            raise InvalidField("query", "is missing")
        arguments = _split(cls, content)
        arguments["steps"] = _read_steps(content.get("steps", []))
        return cls(**arguments)


def _read_steps(content: Any) -> list[TrajectoryStep]:
    if not isinstance(content, list):
        raise InvalidField("steps", "must be a list of objects")
    steps: list[TrajectoryStep] = []
    for step in cast("Sequence[Any]", content):
        if not isinstance(step, Mapping):
            raise InvalidField("steps", "must be a list of objects")
        steps.append(TrajectoryStep.from_serialised(cast("Mapping[str, Any]", step)))
    return steps


def _known(record: type[Trajectory | TrajectoryStep]) -> list[str]:
    return [item.name for item in fields(record) if item.name != "extra"]


def _split(record: type[Trajectory | TrajectoryStep], content: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the keys into fields of ``record`` and, for all others, its ``extra``."""
    known = _known(record)
    kept: dict[str, Any] = {name: content[name] for name in known if name in content}
    return kept | {"extra": {name: content[name] for name in content if name not in known}}
