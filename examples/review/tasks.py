"""The task: review one Markdown document, and publish the review when a person agrees."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from examples.review.engine import (
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
)
from redis_state.demo.flow import TICK, tick
from redis_state.models import SteeringEventType
from redis_state.worker import AgentWorker, TaskContext

# What each stage does, in the order in which they run.
STAGES = {
    "parse": "read the document",
    "outline": "check the headings",
    "links": "check links and anchors",
    "sections": "look for long sections",
    "repeats": "look for repeated paragraphs",
    "contents": "propose a table of contents",
}


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
class _Steering:
    """What steering changed in a review so far."""

    policy: LinkPolicy = LinkPolicy.RELATIVE
    notes: list[str] = field(default_factory=list[str])


async def review_document(ctx: TaskContext) -> dict[str, Any]:
    """Review a document, ask for approval, and write the report; if approved, the copy too.

    Each stage is a step: after the pause, in another process, nothing is done twice. REDIRECT
    with ``constraints.link_policy`` has the links checked by that policy; INJECT_CONTEXT puts its
    text into the report.
    """
    job = ReviewJob(**ctx.input)
    steering = _Steering()
    document = await asyncio.to_thread(parse, Path(job.path))
    work = _stage_work(document, job)
    findings: list[dict[str, Any]] = []
    contents = ""
    for number, (stage, description) in enumerate(STAGES.items(), start=1):
        _apply_steering(ctx, steering)
        say = partial(ctx.progress, description, step=number, total=len(STAGES) + 1)
        found: Any = await ctx.step(stage, _report_and_do, say, work[stage], job.pace_s)
        if stage == "contents":
            contents = str(found)
        else:
            findings += found
    decision = await ctx.approval(
        f"Publish the reviewed copy of {job.name}?",
        {"findings": len(findings), "contents": contents},
    )
    _apply_steering(ctx, steering)
    if steering.policy is not LinkPolicy.RELATIVE:
        check = partial(_links, document, job, steering.policy)
        say = partial(ctx.progress, f"check links again: {steering.policy.value}")
        stricter: Any = await ctx.step(
            f"links {steering.policy.value}", _report_and_do, say, check, job.pace_s
        )
        findings += [finding for finding in stricter if finding not in findings]
    written = await ctx.step(
        "write",
        _write,
        document,
        job,
        findings,
        contents,
        notes=steering.notes,
        approved=decision.approved,
    )
    await ctx.result({"written": written})
    return {
        "approved": decision.approved,
        "actor": decision.actor,
        "findings": len(findings),
        "policy": steering.policy.value,
        "notes": steering.notes,
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


async def _report_and_do(
    say: Callable[[], Awaitable[None]], work: Callable[[], Any], pace_s: float
) -> Any:
    """Publish a stage and do it, off the event loop: a review is real work for a processor."""
    await say()
    if pace_s:
        await asyncio.sleep(pace_s)
    return await asyncio.to_thread(work)


def _links(document: ParsedDocument, job: ReviewJob, policy: LinkPolicy) -> list[dict[str, Any]]:
    return _dicts(check_links(document, policy, root=Path(job.root)))


def _dicts(findings: list[Finding]) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in findings]


def _apply_steering(ctx: TaskContext, steering: _Steering) -> None:
    for event in ctx.inbox.take():
        if event.event_type is SteeringEventType.INJECT_CONTEXT:
            steering.notes.append(str(event.payload.get("text", "")))
        if event.event_type is SteeringEventType.REDIRECT:
            constraints: dict[str, Any] = event.payload.get("constraints") or {}
            steering.policy = LinkPolicy(constraints.get("link_policy", steering.policy.value))


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
    text = report(document, [Finding(**found) for found in findings], contents)
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


worker: AgentWorker = AgentWorker(
    {"review_document": review_document, TICK: tick}, max_tasks=4, grace_s=2.0
)
# Another worker reclaims its tasks a few seconds after its death.
mortal: AgentWorker = replace(worker, lease_s=3.0)
