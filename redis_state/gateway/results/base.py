"""What every answer has: one shape of errors, and the small answers that several routes share."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class ResultShape(BaseModel):
    """The base of every answer: it has exactly the fields that are named."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class ErrorFacts(BaseModel):
    """What went wrong. There may be more facts, by the code."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    code: str
    message: str


class ErrorResult(ResultShape):
    """Every error has this shape."""

    error: ErrorFacts


class LinkResult(ResultShape):
    """The task that another one was made from."""

    session_id: str
    task_id: str
    before: str | None = None


class DeletedResult(ResultShape):
    """Whether there was something to delete."""

    deleted: bool


class HealthResult(ResultShape):
    """Whether this process serves."""

    status: str
