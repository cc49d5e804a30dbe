"""Server-sent events: how a row, a gap and an end are written, and which cursors are accepted.

An event is text up to an empty line. So no value of a row may bring a line break: a row is one line
of JSON, in which line breaks are escaped. ``id:`` stands on durable rows only. An event without an
id leaves the client's cursor where it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from redis_state.errors import CursorGap, InvalidField
from redis_state.gateway.showing.cutting import cut_tokens, may_have_token
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.serialization import codec
from redis_state.stores.sessions.session_log import Entry
from redis_state.transport.keys import token_scopes

TAIL: Final = "$"
ALL: Final = "0"
HEARTBEAT: Final = b":\n\n"

# As the log writes them: a number, a time in ms, and the log that they belong to.
_CURSOR = re.compile(r"[0-9]{1,18}-[0-9]{1,18}(?:-[0-9a-f]{8})?")
_LONGEST_CURSOR = 46
_ENDS = frozenset(status.value for status in TaskStatus if status.is_terminal)
# A client without further advice comes back after so long. Spread, they do not all come at once.
_SOONEST_MS, _LATEST_MS = 100, 700
# Where coming back soon would fail again: what has failed is to be mended first.
_LATER_MS, _MUCH_LATER_MS = 5_000, 15_000


@dataclass(frozen=True, slots=True)
class Frame:
    """One row of a session as every client gets it. ``data`` is empty if it cannot be read."""

    n: int
    ms: int
    task_id: str | None
    update_type: str | None
    ends_task: bool
    data: bytes = field(repr=False)
    # The child that its task names in it.
    spawned: str | None = None
    # The epoch of the run that published it.
    run: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The row's number and time."""
        return self.n, self.ms

    def update(self) -> StateUpdate:
        """Read the row back, without what was cut."""
        line = self.data.rpartition(b"\ndata: ")[2]
        fields: dict[str, Any] = codec.decode(line.removesuffix(b"\n\n"))
        return StateUpdate.model_validate(fields)


class FrameWriter:
    """Write the rows of one session as frames."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        # What a row with a token of a pause has: the session's part of the key, also as a part of a
        # URL, or the name under which hosts keep theirs.
        signs = [*(f"{scope}." for scope in token_scopes(session_id)), "resume_token"]
        self._signs: tuple[bytes, ...] = tuple(sign.encode() for sign in signs)

    def frame(self, entry: Entry[StateUpdate | None] | Entry[StateUpdate]) -> Frame:
        """Write a row."""
        n, ms = position(entry.cursor)
        update = entry.value
        if update is None:
            return Frame(n, ms, None, None, ends_task=False, data=b"")
        kind, run = UpdateType(update.update_type.value), entry.run
        return Frame(
            n,
            ms,
            update.task_id,
            kind.value,
            ends_task=_ends_task(kind, update.content),
            data=self.row(entry.cursor, update, run),
            spawned=_spawned(kind, update.content),
            run=run,
        )

    def changed(self, frame: Frame, update: StateUpdate) -> bytes:
        """Write what one client may see of a row."""
        # The cursor as it was written, with the log's name.
        cursor = frame.data.partition(b"\n")[0].removeprefix(b"id: ").decode()
        return self.row(cursor, update, frame.run)

    def row(self, cursor: str, update: StateUpdate, run: int | None = None) -> bytes:
        """Write an update under its cursor."""
        document: dict[str, Any] = {
            "session_id": update.session_id,
            "task_id": update.task_id,
            "trace_id": update.trace_id,
            "update_id": update.update_id,
            "update_type": update.update_type.value,
            "content": update.content,
            "step_index": update.step_index,
            "total_steps": update.total_steps,
            "created_at": update.created_at.isoformat(),
        }
        if run is not None:
            document["run"] = run
        return event(update.update_type.value, self._without_tokens(document), cursor=cursor)

    def _without_tokens(self, document: dict[str, Any]) -> bytes:
        data = codec.encode(document)
        if any(sign in data for sign in self._signs) or may_have_token(data):
            return codec.encode(cut_tokens(self._session_id, document))
        return data


def event(name: str, data: bytes, *, cursor: str | None = None) -> bytes:
    """Write an event with one line of JSON."""
    # Our encoder never writes a line break.
    line = data.replace(b"\r", b" ").replace(b"\n", b" ")
    head = b"" if cursor is None else b"id: %s\n" % cursor.encode()
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), line)


# Says that the right to read has ended. The client reads on with a new one.
EXPIRED: Final = event("expired", b"{}")


def resync(gap: CursorGap) -> bytes:
    """Write that rows after the client's cursor are missing, and where it reads on."""
    facts = {"missed": gap.missed, "reason": gap.reason, "resume_after": gap.resume_after}
    return event("resync", codec.encode(facts))


def task_end(task_id: str, status: str | None) -> bytes:
    """Write that a task is terminal: no row of it follows. None: its record is gone."""
    return event("end", codec.encode({"task_id": task_id, "status": status}))


def come_back(cursor: str | None = None) -> bytes:
    """Write after how many ms a client connects again, each after another time.

    A cursor is where it is now. An id without data is no event: a client only remembers it.
    """
    head = b"" if cursor is None else b"id: %s\n" % cursor.encode()
    return b"%sretry: %d\n\n" % (head, random.randint(_SOONEST_MS, _LATEST_MS))


def come_back_later() -> bytes:
    """Write the same for a client whose stream has failed, and would fail again."""
    return b"retry: %d\n\n" % random.randint(_LATER_MS, _MUCH_LATER_MS)


def heartbeat(cursor: str | None = None) -> bytes:
    """Write what keeps a connection open, under the place of a client that was sent no row lately.

    Rows that a client does not want are dropped too: without a newer place it would have a gap.
    """
    return HEARTBEAT if cursor is None else b":\nid: %s\n\n" % cursor.encode()


def position(cursor: str) -> tuple[int, int]:
    """Return the number and the time of a cursor of a log."""
    n, _, rest = cursor.partition("-")
    return int(n), int(rest.partition("-")[0])


def check_cursor(after: str | None) -> str | None:
    """Check what a client reads on after: a cursor, ``$`` or ``0``. Errors: InvalidField."""
    if after is None or after in (TAIL, ALL):
        return after
    is_text = isinstance(after, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_text or len(after) > _LONGEST_CURSOR or not _CURSOR.fullmatch(after):
        raise InvalidField("after", "must be a cursor of this stream, $ for its end, or 0 for all")
    return after


def check_types(types: Collection[UpdateType | str] | None) -> frozenset[str] | None:
    """Check the types of updates that a client wants; None for all. Errors: InvalidField."""
    if types is None:
        return None
    known = {kind.value for kind in UpdateType}
    wanted = frozenset(kind.value if isinstance(kind, UpdateType) else kind for kind in types)
    if isinstance(types, str) or not wanted or not wanted <= known:
        raise InvalidField("types", f"must be some of {', '.join(sorted(known))}")
    return wanted


def _ends_task(kind: UpdateType, content: Any) -> bool:
    match content:
        case {"status": str(status)} if kind is UpdateType.STATUS_CHANGE:
            return status in _ENDS
        case _:
            return False


def _spawned(kind: UpdateType, content: Any) -> str | None:
    match content:
        case {"notice": "child", "task_id": str(child)} if kind is UpdateType.NOTIFICATION:
            return child
        case _:
            return None
