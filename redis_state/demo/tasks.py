"""The demo's task: review one Markdown document, and publish the review when a person agrees."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis_state.demo.review import (
    Finding,
    LinkPolicy,
    ParsedDocument,
    check_links,
    heading_problems,
    long_sections,
    paragraph_index,
    parse,
    propose_contents,
    repeated_paragraphs,
    report,
    reviewed_copy,
    stages,
)
from redis_state.models import SteeringEventType
from redis_state.worker import TaskContext


@dataclass(frozen=True, slots=True)
class ReviewJob:
    """What a review task is given; all paths absolute. ``pace_s`` slows it down for spectators."""

    path: str
    documents: list[str]
    root: str
    output: str
    name: str
    pace_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON values."""
        return asdict(self)


@dataclass(slots=True)
class _Wishes:
    """What steering has asked of a review so far."""

    policy: LinkPolicy = LinkPolicy.RELATIVE
    notes: list[str] = field(default_factory=list[str])


async def review_document(ctx: TaskContext) -> dict[str, Any]:
    """Review a document, ask for approval, and write the report; if approved, the copy too.

    Each stage is a step: after the pause, in another process, nothing is done twice. REDIRECT
    with ``constraints.link_policy`` has the links checked by that policy; INJECT_CONTEXT puts its
    text into the report.
    """
    job = ReviewJob(**ctx.input)
    wishes = _Wishes()
    document = await asyncio.to_thread(parse, Path(job.path))
    work = _stage_work(document, job)
    names = [stage.name for stage in stages()]
    findings: list[dict[str, Any]] = []
    contents = ""
    for number, stage in enumerate(stages(), start=1):
        _heed(ctx, wishes)
        say = partial(ctx.progress, stage.description, step=number, total=len(names) + 1)
        found: Any = await ctx.step(stage.name, _told, say, work[stage.name], job.pace_s)
        if stage.name == "contents":
            contents = str(found)
        else:
            findings += found
    decision = await ctx.approval(
        f"Publish the reviewed copy of {job.name}?",
        {"findings": len(findings), "contents": contents},
    )
    _heed(ctx, wishes)
    if wishes.policy is not LinkPolicy.RELATIVE:
        check = partial(_links, document, job, wishes.policy)
        say = partial(ctx.progress, f"check links again: {wishes.policy.value}")
        stricter: Any = await ctx.step(
            f"links {wishes.policy.value}", _told, say, check, job.pace_s
        )
        findings += [finding for finding in stricter if finding not in findings]
    written = await ctx.step(
        "write",
        _write,
        document,
        job,
        findings,
        contents,
        notes=wishes.notes,
        approved=decision.approved,
    )
    await ctx.result({"written": written})
    return {
        "approved": decision.approved,
        "by": decision.by,
        "findings": len(findings),
        "policy": wishes.policy.value,
        "notes": wishes.notes,
        "written": written,
    }


def _stage_work(document: ParsedDocument, job: ReviewJob) -> dict[str, Callable[[], Any]]:
    others = [Path(path) for path in job.documents]
    return {
        "parse": list[Any],
        "outline": lambda: _dicts(heading_problems(document)),
        "links": partial(_links, document, job, LinkPolicy.RELATIVE),
        "sections": lambda: _dicts(long_sections(document)),
        "repeats": lambda: _dicts(repeated_paragraphs(document, paragraph_index(others))),
        "contents": lambda: propose_contents(document),
    }


async def _told(say: Callable[[], Awaitable[None]], work: Callable[[], Any], pace_s: float) -> Any:
    """Publish a stage and do it, off the event loop: a review is real work for a processor."""
    await say()
    if pace_s:
        await asyncio.sleep(pace_s)
    return await asyncio.to_thread(work)


def _links(document: ParsedDocument, job: ReviewJob, policy: LinkPolicy) -> list[dict[str, Any]]:
    return _dicts(check_links(document, policy, root=Path(job.root)))


def _dicts(findings: list[Finding]) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in findings]


def _heed(ctx: TaskContext, wishes: _Wishes) -> None:
    for event in ctx.inbox.take():
        if event.event_type is SteeringEventType.INJECT_CONTEXT:
            wishes.notes.append(str(event.payload.get("text", "")))
        if event.event_type is SteeringEventType.REDIRECT:
            constraints: dict[str, Any] = event.payload.get("constraints") or {}
            wishes.policy = LinkPolicy(constraints.get("link_policy", wishes.policy.value))


def _write(
    document: ParsedDocument,
    job: ReviewJob,
    findings: list[dict[str, Any]],
    contents: str,
    *,
    notes: list[str],
    approved: bool,
) -> list[str]:
    """Write the report, and the reviewed copy if it was approved; return the files' names."""
    folder = Path(job.output)
    folder.mkdir(parents=True, exist_ok=True)
    text = report(document, [Finding.from_dict(found) for found in findings], contents)
    if notes:
        text += "\n## Notes from steering\n\n" + "".join(f"- {note}\n" for note in notes)
    digest = hashlib.sha256(job.path.encode()).hexdigest()[:6]
    stem = f"{Path(job.name).stem}-{digest}"
    files = {f"{stem}.report.md": text}
    if approved:
        files[f"{stem}.reviewed.md"] = reviewed_copy(document, contents)
    for name, content in files.items():
        _replace(folder / name, content)
    return sorted(files)


def _replace(path: Path, content: str) -> None:
    """Write a file whole or not at all: the step may be repeated after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".review-")
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        file.write(content)
    Path(temporary).replace(path)
