"""The findings as pictures: the bars that were asked for, and latency of one caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report import Row

mpl.use("Agg")
_GOOD, _BAD, _PLAIN = "#2a7f62", "#b5483a", "#5b6b7b"


def draw(folder: Path, about: Mapping[str, object], rows: Sequence[Row]) -> None:
    """Write the plots beside the JSON."""
    said = f"{about['server']}, {about['machine']}, {about['at']}"
    judged = [found for found in rows if found.ok is not None and found.ratio is not None]
    if judged:
        _bars(folder / "ratios.png", said, judged)
    for operation in ("append", "save", "load"):
        _contenders(folder / f"{operation}.png", said, rows, operation)


def _bars(path: Path, said: str, judged: Sequence[Row]) -> None:
    """Draw how far each ratio is from its bar; more than 1 is better than asked for."""
    shares: list[float] = []
    for found in judged:
        sign, _, bar = found.bar.partition(" ")
        ratio = found.ratio or 1e-9
        shares.append(ratio / float(bar) if sign == ">=" else float(bar) / ratio)
    figure: Any = Figure(figsize=(10, 0.42 * len(judged) + 1.4), layout="constrained")
    axes = figure.subplots()
    places = range(len(judged))
    axes.barh(places, shares, color=[_GOOD if found.ok else _BAD for found in judged])
    axes.set_yticks(places, [f"{found.measure} / {found.peer}" for found in judged])
    for place, found in zip(places, judged, strict=True):
        text = f" {found.ratio:.2f}x ({found.bar})"
        axes.text(shares[place], place, text, va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, max(shares) * 1.25)
    axes.invert_yaxis()
    axes.set_xlabel("better than the bar to the right of 1")
    axes.set_title(said, fontsize=8)
    figure.savefig(path, dpi=110)


def _contenders(path: Path, said: str, rows: Sequence[Row], operation: str) -> None:
    """Draw one operation's rates, all contenders side by side."""
    wanted = f": {operation}, 64 callers, ops/s"
    found = [(each.measure.removesuffix(wanted), each.value or 0.0) for each in rows
             if each.measure.endswith(wanted)]  # fmt: skip
    if not found:
        return
    figure: Any = Figure(figsize=(8, 0.5 * len(found) + 1.4), layout="constrained")
    axes = figure.subplots()
    places = range(len(found))
    colours = [_GOOD if name == "ours" else _PLAIN for name, _ in found]
    axes.barh(places, [rate for _, rate in found], color=colours)
    axes.set_yticks(places, [name for name, _ in found])
    for place, (_, rate) in zip(places, found, strict=True):
        axes.text(rate, place, f" {rate:,.0f}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(f"{operation}, 64 callers, operations per second (logarithmic)")
    axes.set_title(said, fontsize=8)
    figure.savefig(path, dpi=110)
