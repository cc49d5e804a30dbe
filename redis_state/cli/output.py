"""What the commands print: documents on one line for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_state.documents import pause_document
from redis_state.errors import CallerError
from redis_state.models import TaskState, TaskStatus
from redis_state.private_file import NotPrivate
from redis_state.serialization import codec

if TYPE_CHECKING:
    from redis_state.worker import OpenPause

_STYLES = {
    TaskStatus.PENDING: "cyan",
    TaskStatus.RUNNING: "blue",
    TaskStatus.PAUSED: "yellow",
    TaskStatus.COMPLETE: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.CANCELLED: "magenta",
}
_LONGEST = 60
_STANDARD_OUTPUT = Path("-")
_WIDEST = 10_000


def print_json(document: Any) -> None:
    """Print one document on one line, unbuffered, for programs that follow."""
    print(codec.encode(document).decode(), flush=True)


def file_of(given: Path | None) -> Path | None:
    """Return the file that a document is written to; None if it is printed."""
    return None if given == _STANDARD_OUTPUT else given


def save_to(path: Path, save: Callable[[Path], None]) -> None:
    """Write a document to the file that a caller names. Errors: CallerError."""
    try:
        save(path)
    except OSError as error:
        hint = "; -o - prints it" if isinstance(error, NotPrivate) else ""
        raise CallerError(f"{path} cannot be written: {error.strerror}{hint}") from None


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str) -> None:
    """Print rows under their columns, or ``none`` without rows. Ids are never shortened."""
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("session", "task", "id"))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_text(cell)) for cell in row))
    if not table.row_count:
        print_line(none)
        return
    # As wide as it has to be: what is copied from it must be whole.
    width = Console(width=_WIDEST).measure(table).maximum
    Console(width=max(width, Console().width)).print(table)


def print_line(text: str) -> None:
    """Print a line as it is; what the output cannot write, such as half of a pair, as an escape."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def status_of(state: TaskState) -> Text:
    """Write a task's state in its colour."""
    return coloured(state.status)


def coloured(status: TaskStatus) -> Text:
    """Write a status in its colour."""
    return Text(status.value, style=_STYLES[status])


def revealed_document(pause: OpenPause) -> dict[str, Any]:
    """Write an open pause with what decides it, if that was revealed."""
    return pause_document(pause) | {"token": pause.token}


def form_lines(pause: OpenPause) -> list[str]:
    """Write the form of a pause for a person: one line for each field, or the schema itself."""
    schema = pause.schema
    if schema is None:
        return []
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return [f"value: {brief(schema)}"]
    needed = cast("Any", required) if isinstance(required, list) else ()
    return [
        f"{harmless(name)}{' (required)' if name in needed else ''}: {brief(rules)}"
        for name, rules in cast("dict[str, Any]", properties).items()
    ]


def deciders_of(pause: OpenPause) -> str:
    """Write who decides a pause, and how they have voted."""
    if not pause.deciders:
        return ""
    named = [
        f"{harmless(each.name)}: {each.state}"
        + (f" to {harmless(each.delegated_to)}" if each.delegated_to else "")
        for each in pause.deciders
    ]
    return f"{pause.approvals} of {', '.join(named)}"


def age(moment: datetime) -> str:
    """Write how long ago a moment is, or how soon, in one unit."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = abs((datetime.now(UTC) - aware).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def brief(value: Any) -> str:
    """Write a value on one line, the start of it if it is long."""
    text = value if isinstance(value, str) else json.dumps(codec.plain(value), ensure_ascii=False)
    text = harmless(" ".join(text.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def harmless(text: str) -> str:
    """Leave out what a terminal would obey, or cannot show."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _text(value: Any) -> str:
    return "" if value is None else harmless(str(value))
