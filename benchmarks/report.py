"""What was found: rows with their bars, a table, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One finding of a part. ``ratio`` is ours over the peer's; ``ok`` is None without a bar.

    ``unit`` is "not measured" where something could not be had; ``note`` says why.
    """

    measure: str
    value: float | None
    unit: str
    peer: str = ""
    ratio: float | None = None
    bar: str = ""
    stretch: str = ""
    ok: bool | None = None
    note: str = ""
    part: str = ""


def row(
    measure: str,
    value: float,
    unit: str,
    *,
    peer: str = "",
    ratio: float | None = None,
    bar: tuple[float, float] | None = None,
    most: bool = False,
    note: str = "",
) -> Row:
    """Make a row. ``bar`` is the bar and the stretch, for the ratio if there is one.

    ``most``: smaller is better.
    """
    if bar is None:
        return Row(measure, value, unit, peer, ratio, note=note)
    judged = value if ratio is None else ratio
    sign = "<=" if most else ">="
    ok = judged <= bar[0] if most else judged >= bar[0]
    shown = [f"{sign} {limit:g}" for limit in bar]
    return Row(measure, value, unit, peer, ratio, shown[0], shown[1], ok, note)


def missing(measure: str, why: str, *, peer: str = "", failed: bool = False) -> Row:
    """Make a row for what could not be measured; ``failed`` if it should have been."""
    return Row(measure, None, "not measured", peer, ok=False if failed else None, note=why)


def table(rows: Sequence[Row]) -> str:
    """Write rows as a table for people."""
    lines = [("measure", "value", "against", "ratio", "bar", "stretch", "")]
    for found in rows:
        value = found.note[:60] if found.value is None else f"{_short(found.value)} {found.unit}"
        ratio = "" if found.ratio is None else f"{found.ratio:.2f}x"
        verdict = {True: "ok", False: "MISSED", None: ""}[found.ok]
        lines.append((found.measure, value, found.peer, ratio, found.bar, found.stretch, verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(7)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def notes(rows: Sequence[Row]) -> str:
    """Write the notes of rows that were measured, a line each."""
    noted = [found for found in rows if found.note and found.value is not None]
    return "".join(f"  {found.measure}: {found.note}\n" for found in noted)


def write(
    folder: Path, about: Mapping[str, object], rows: Sequence[Row], parts: Sequence[str] = ()
) -> Path:
    """Write the findings as ``latest.json``.

    Those of some ``parts`` take the place of theirs in that file, under an ``about`` of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "latest.json"
    document: dict[str, Any] = {"about": dict(about), "rows": [asdict(found) for found in rows]}
    if parts and path.is_file():
        before: dict[str, Any] = json.loads(path.read_text("utf-8"))
        kept = [found for found in before["rows"] if found["part"] not in parts]
        document = {
            "about": before["about"],
            "parts": {**before.get("parts", {}), **{name: dict(about) for name in parts}},
            "rows": [*kept, *document["rows"]],
        }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def missed(rows: Sequence[Row]) -> list[str]:
    """Name the bars that were missed."""
    return [found.measure for found in rows if found.ok is False]


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
