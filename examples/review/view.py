"""What a person sees of the run: live bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table

from examples.review.outcome import Outcome, Review

_COLOURS = {
    "PENDING": "dim",
    "RUNNING": "cyan",
    "PAUSED": "yellow",
    "COMPLETE": "green",
    "FAILED": "bold red",
    "CANCELLED": "magenta",
}
_LIVE_COLUMNS = 66
_TABLE_COLUMNS = 60
_SHORTEST_NAME = 12


class Answers:
    """Lines from standard input, read beside the event loop so that Ctrl-C is never held up."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self) -> str | None:
        """Return the next line, or None after the last."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    def _read(self) -> None:
        # Not through sys.stdin: its lock, held at exit by a thread that waits, is a fatal error.
        rest = b""
        while True:
            try:
                data = os.read(sys.stdin.fileno(), 4096)
            except (OSError, ValueError):
                data = b""
            *lines, rest = (rest + data).split(b"\n")
            if not data and rest:
                lines.append(rest)
            for line in lines:
                self._deliver(line.decode(errors="replace"))
            if not data:
                self._deliver(None)
                return

    def _deliver(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class PlainView:
    """One line for each change, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._answers: Answers | None = None
        self._shown: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, review: Review) -> None:
        """Print where a task stands, if that is news."""
        at = f" @ {review.worker}" if review.worker and not review.ended else ""
        line = f"{review.name}: {review.status} {review.stage}".rstrip() + at
        if self._shown.get(review.task_id) != line:
            self._shown[review.task_id] = line
            self._print(line)

    def say(self, text: str) -> None:
        """Print a line."""
        self._print(f"> {text}")

    async def ask(self, review: Review) -> bool:
        """Read a decision from standard input: y or n. No answer at all is no."""
        self._answers = self._answers or Answers()
        found = "1 finding" if review.findings == 1 else f"{review.findings} findings"
        self._print(f"? {review.name}: {found}. Publish the reviewed copy? [Y/n]")
        answer = await self._answers.next()
        if answer is None:
            self._print("> no answer: not published")
        return answer is not None and not answer.strip().lower().startswith("n")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveView(PlainView):
    """One line with a bar for each task; what concerns no one task stands above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[stage]}", table_column=Column(no_wrap=True, ratio=1)),
            console=console,
            expand=True,
        )
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, review: Review) -> None:
        """Draw a task's line."""
        line = self._lines.get(review.task_id)
        if line is None:
            name = _end_of(review.name, self._console.width - _LIVE_COLUMNS)
            line = self._progress.add_task(escape(name), total=1, status="", stage="")
            self._lines[review.task_id] = line
        at = f"[dim]{escape(_process(review.worker))}:[/] " if review.worker else ""
        self._progress.update(
            line,
            completed=review.done,
            total=review.total,
            status=_coloured(review.status, f"{review.status:<9}"),
            stage="" if review.ended else at + escape(review.stage),
        )

    async def ask(self, review: Review) -> bool:
        """Ask the person at the terminal to decide."""
        self._progress.stop()
        try:
            return await super().ask(review)
        finally:
            self._progress.start()

    def _print(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


def view_for(console: Console) -> PlainView:
    """Choose by what the output is."""
    return LiveView(console) if console.is_terminal else PlainView(console)


def outcome_table(outcome: Outcome, *, width: int) -> Table:
    """Draw how each task went, in so many columns at least."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("document", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    if outcome.killed:
        table.add_column("killed", no_wrap=True)
        table.add_column("taken over by", no_wrap=True)
    table.add_column("paused by", no_wrap=True)
    table.add_column("resumed by", no_wrap=True)
    if not outcome.killed:
        table.add_column("updates", justify="right")
        table.add_column("findings", justify="right")
    for review in outcome.reviews:
        decided = {True: "approved", False: "rejected", None: review.status.lower()}
        what = decided[review.decision] if not review.problem() else review.status.lower()
        table.add_row(
            escape(_end_of(review.name, width - _TABLE_COLUMNS)),
            _coloured(review.status, what),
            *([_killed(review), _taken_over_by(review)] if outcome.killed else []),
            escape(_process(review.paused_by)),
            _resumed_by(review),
            *([] if outcome.killed else _numbers(review)),
        )
    return table


def _resumed_by(review: Review) -> str:
    style = "bold" if review.resumed_by != review.paused_by else "dim"
    return f"[{style}]{escape(_process(review.resumed_by))}[/]" if review.resumed_by else ""


def _numbers(review: Review) -> list[str]:
    return [str(len(review.updates)), "" if review.findings is None else str(review.findings)]


def _killed(review: Review) -> str:
    return f"[red]{escape(_process(review.left_by))}[/]" if review.left_by else ""


def _taken_over_by(review: Review) -> str:
    return f"[bold]{escape(_process(review.taken_over_by))}[/]" if review.taken_over_by else ""


def _process(name: str) -> str:
    """Return a worker's process; the host only if it is another one."""
    host, _, number = name.rpartition(":")
    return f"pid {number}" if number and host == socket.gethostname() else name


def _end_of(name: str, width: int) -> str:
    """Shorten a path from the left: its end distinguishes it."""
    width = max(width, _SHORTEST_NAME)
    if len(name) <= width:
        return name
    end = name[-(width - 1) :]
    return "…" + end[max(end.find("/"), 0) :]


def _coloured(status: str, text: str) -> str:
    colour = _COLOURS.get(status, "")
    return f"[{colour}]{text}[/]" if colour else text
