"""What the driver knows of each task, from nothing but its updates; and what it expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from redis_state.demo.flow import FlowFacts
from redis_state.models import StateUpdate, TaskStatus, UpdateType

INFORMATION = "The person in charge sent this note while the review was running."


class Role(StrEnum):
    """What the driver does to a task besides deciding it."""

    PLAIN = "approved"
    INFORMED = "gets a note while it runs (INJECT_CONTEXT)"
    REDIRECTED = "redirected to check links strictly (REDIRECT)"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Review:
    """One document's task, as its updates show it."""

    task_id: str
    path: Path
    name: str
    role: Role
    status: str = "PENDING"
    stage: str = ""
    started: bool = False
    done: int = 0
    total: int = 1
    worker: str = ""
    paused_by: str = ""
    resumed_by: str = ""
    left_by: str = ""
    taken_over_by: str = ""
    token: str = ""
    decision: bool | None = None
    findings: int | None = None
    error: str = ""
    result: Any = None
    updates: list[str] = field(default_factory=list[str])

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self.status in TaskStatus.__members__ and TaskStatus(self.status).is_terminal

    def observe(self, update: StateUpdate) -> None:
        """Apply one update."""
        self.updates.append(update.update_id)
        found: Any = update.content
        content = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        if update.update_type is UpdateType.PROGRESS:
            self.stage = str(content.get("message", ""))
            self.done = update.step_index or self.done
            self.total = update.total_steps or self.total
        elif update.update_type is UpdateType.CHECKPOINT:
            self.token = str(content.get("pause_id", ""))
            self.paused_by = self.worker
            self.stage = "wait for a decision"
            payload: dict[str, Any] = content.get("payload") or {}
            self.findings = payload.get("details", {}).get("findings")
        elif update.update_type is UpdateType.STATUS_CHANGE:
            self._move(content)

    def _move(self, content: dict[str, Any]) -> None:
        was, self.status = self.status, str(content.get("status", self.status))
        if was == self.status == "RUNNING":
            # No worker gave the task back in between: the one before is dead.
            self.left_by, self.taken_over_by = self.worker, str(content.get("worker", ""))
        if self.status == "PENDING":
            self.worker, self.stage = "", "wait for a worker"
        if self.status == "RUNNING":
            self.worker = str(content.get("worker", ""))
            self.stage = "begin"
            if self.decision is not None:
                self.resumed_by, self.stage = self.worker, "write the report"
        if self.status == "COMPLETE":
            self.stage, self.done = "done", self.total
        self.error = str(content.get("error") or self.error)

    def problem(self) -> str:
        """Return in which way the outcome differs from what the driver caused, if any."""
        wanted = "CANCELLED" if self.role is Role.CANCELLED else "COMPLETE"
        if self.status != wanted:
            return f"ended as {self.status}, not {wanted} {self.error}".rstrip()
        if self.role is Role.CANCELLED:
            return ""
        result: Any = self.result
        known = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
        return "; ".join(self._wrong(known))

    def _wrong(self, result: dict[str, Any]) -> Iterator[str]:
        files = result.get("written", [])
        if self.decision is None or result.get("approved") is not self.decision:
            yield f"was decided {self.decision}, but the task received {result.get('approved')}"
        if len(files) != (2 if self.decision else 1):
            yield f"wrote {len(files)} files"
        if self.role is Role.INFORMED and result.get("notes") != [INFORMATION]:
            yield "did not receive its note"
        if self.role is Role.REDIRECTED and result.get("policy") != "strict":
            yield "was redirected to check links strictly and did not"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the whole run ended. ``problems`` is empty if all went as it should."""

    reviews: list[Review]
    updates_written: int
    updates_seen: int
    moved: list[str]
    problems: list[str]
    output: Path
    seconds: float
    flow: FlowFacts
    killed: str = ""

    @property
    def taken_over(self) -> list[Review]:
        """The reviews whose worker died, and which another one took over."""
        return [review for review in self.reviews if review.taken_over_by]

    @property
    def ok(self) -> bool:
        """Whether every task ended as it should and every update was seen exactly once."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values. Tokens are left out."""
        return {
            "ok": self.ok,
            "problems": self.problems,
            "seconds": round(self.seconds, 2),
            "updates_written": self.updates_written,
            "updates_seen": self.updates_seen,
            "resumed_elsewhere": self.moved,
            "killed": self.killed or None,
            "taken_over": [review.name for review in self.taken_over],
            "flow": asdict(self.flow),
            "output": str(self.output),
            "documents": [_public(review) for review in self.reviews],
        }


def takeover_problems(reviews: Sequence[Review], killed: str) -> Iterator[str]:
    """Return what is wrong if another worker should have what the killed one was reviewing."""
    left = [review for review in reviews if killed and review.left_by == killed]
    if not killed:
        yield "no worker was killed"
    elif not left:
        yield "nothing was taken over from the worker that was killed"
    for review in left:
        if review.taken_over_by == killed:
            yield f"{review.name}: not taken over by another worker"


def assign_roles(documents: list[Path], root: Path) -> list[Review]:
    """Give the first documents the roles there are; with one or two, nothing is cancelled."""
    roles = [Role.INFORMED, Role.REDIRECTED, Role.CANCELLED]
    names = _names(documents, root)
    return [
        Review(
            task_id=f"review-{number:02d}",
            path=path,
            name=names[path],
            role=roles[number] if number < len(roles) else Role.PLAIN,
        )
        for number, path in enumerate(documents)
    ]


def _names(documents: list[Path], root: Path) -> dict[Path, str]:
    """Return documents as seen from here; those elsewhere by an unambiguous end."""
    names = {path: str(path.relative_to(root)) for path in documents if path.is_relative_to(root)}
    for path in documents:
        others = [other for other in documents if other != path]
        for length in range(1, len(path.parts) + 1):
            end = path.parts[-length:]
            if path not in names and all(other.parts[-length:] != end for other in others):
                names[path] = str(Path(*end))
    return names


def _public(review: Review) -> dict[str, Any]:
    fields = asdict(review) | {"path": str(review.path), "updates": len(review.updates)}
    hidden = {"token", "task_id", "stage", "started", "done", "total", "worker"}
    return {name: value for name, value in fields.items() if name not in hidden}
