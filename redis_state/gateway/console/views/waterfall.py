"""The waterfall of a task: when what ran, as bars of an SVG and as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from redis_state.gateway.console.rendering import moment, read_time

_MOST_BARS = 200
_WIDTH, _LABELS = 1_000, 230
_LINE = 22
_LEAST_WIDTH = 2.0
_OVER = frozenset({"COMPLETE", "FAILED", "CANCELLED"})


@dataclass(slots=True)
class Bar:
    """Something that took time. ``end`` is None while it lasts. ``marks`` are failed attempts."""

    kind: str
    label: str
    start: datetime
    end: datetime | None
    detail: str = ""
    marks: list[datetime] = field(default_factory=list[datetime])


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Bars with their places in the picture."""

    rows: list[dict[str, Any]]
    takeovers: list[float]
    height: int
    span_ms: float
    dropped: int


def read_waterfall(
    timeline: Mapping[str, Any], children: Sequence[Mapping[str, Any]], *, now: datetime
) -> Waterfall | None:
    """Make the picture of a timeline; None while there is nothing to show."""
    rows = timeline["rows"]
    runs, takeovers = _runs(rows)
    steps = [_step(each) for each in timeline["steps"]]
    steps += [
        Bar("step", each["step"], read_time(each["began_at"]), None, f"attempt {each['attempt']}")
        for each in timeline["task"]["running"]
        if each["began_at"] is not None
    ]
    _mark_attempts(steps, rows)
    bars = [*runs, *steps, *_pauses(rows), *(_child(each) for each in children)]
    bars.sort(key=lambda bar: (bar.kind != "run", bar.start))
    if not bars:
        return None
    return _placed(bars, takeovers, now)


def _placed(bars: list[Bar], takeovers: list[datetime], now: datetime) -> Waterfall:
    shown, dropped = bars[:_MOST_BARS], len(bars) - _MOST_BARS
    begin = min(bar.start for bar in bars)
    end = max([*(bar.end or now for bar in bars), begin + timedelta(milliseconds=1)])
    scale = (_WIDTH - _LABELS - 10) / ((end - begin) / timedelta(seconds=1))

    def place(at: datetime) -> float:
        return round(_LABELS + (at - begin) / timedelta(seconds=1) * scale, 1)

    rows: list[dict[str, Any]] = []
    for number, bar in enumerate(shown):
        ended = max(bar.end or now, bar.start)
        rows.append(
            {
                "kind": bar.kind,
                "label": bar.label,
                "detail": bar.detail,
                "x": place(bar.start),
                "y": number * _LINE + 4,
                "width": max(_LEAST_WIDTH, place(ended) - place(bar.start)),
                "start": bar.start.isoformat(),
                "lasts_ms": (ended - bar.start) / timedelta(milliseconds=1),
                "open": bar.end is None,
                "marks": [place(at) for at in bar.marks],
                "failed": len(bar.marks),
            }
        )
    height = len(shown) * _LINE + 8
    span = (end - begin) / timedelta(milliseconds=1)
    return Waterfall(rows, [place(at) for at in takeovers], height, span, max(0, dropped))


def _runs(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Bar], list[datetime]]:
    """Return the runs, and when one was taken over from a worker that was gone."""
    runs: list[Bar] = []
    takeovers: list[datetime] = []
    for row in rows:
        content = _content(row)
        if row["type"] != "STATUS_CHANGE" or "status" not in content:
            continue
        at, last = read_time(row["at"]), runs[-1] if runs else None
        if last is not None and last.end is None:
            last.end = at
            if content["status"] == "RUNNING":
                takeovers.append(at)
                last.detail += ", taken over"
        if content["status"] == "RUNNING":
            worker = str(content.get("worker", ""))
            runs.append(Bar("run", f"run {len(runs) + 1}", at, None, worker))
    return runs, takeovers


def _pauses(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    found: dict[str, Bar] = {}
    for row in rows:
        content = _content(row)
        name = content.get("pause")
        if name is None:
            if row["type"] == "STATUS_CHANGE" and content.get("status") in _OVER:
                for bar in found.values():
                    bar.end = bar.end or read_time(row["at"])
            continue
        if row["type"] == "CHECKPOINT" and str(name) not in found:
            label = str(content.get("reason") or name)
            found[str(name)] = Bar("pause", label, read_time(row["at"]), None, "open")
        elif row["type"] == "STATUS_CHANGE" and str(name) in found and "actor" in content:
            bar = found[str(name)]
            bar.end = read_time(row["at"])
            way = "approved" if content.get("approved") else "rejected"
            bar.detail = f"{way} by {content['actor']}"
    return list(found.values())


def _mark_attempts(steps: Sequence[Bar], rows: Sequence[Mapping[str, Any]]) -> None:
    by_name = {bar.label: bar for bar in steps}
    for row in rows:
        content = _content(row)
        if content.get("notice") == "attempt_failed":
            bar = by_name.get(str(content.get("entry")))
            if bar is not None:
                bar.marks.append(read_time(row["at"]))


def _step(step: Mapping[str, Any]) -> Bar:
    ended = read_time(step["at"])
    began = moment(step["began_at"]) or ended
    count = step["attempts"]
    detail = "" if count <= 1 else f"{count} attempts"
    return Bar("step", step["step"], min(began, ended), ended, detail)


def _child(child: Mapping[str, Any]) -> Bar:
    end = read_time(child["updated_at"]) if child["status"] in _OVER else None
    label = f"child {child['task_id']}"
    return Bar("child", label, read_time(child["created_at"]), end, child["status"])


def _content(row: Mapping[str, Any]) -> dict[str, Any]:
    content = row["content"]
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
