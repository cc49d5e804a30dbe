"""A task's journal: notes of steps, parts of large results."""

from __future__ import annotations

from redis_state.transport.scripts.run import (
    Asked,
    ScriptRunner,
    raw,
)
from redis_state.transport.scripts.tasks import TaskKeys

# How many entries of a journal one command of a script names: Lua's stack has its limits.
_SLICE = 1000


class JournalScripts(ScriptRunner):
    """A task's journal: notes of steps, parts of large results."""

    def note_step(
        self,
        keys: TaskKeys,
        *,
        epoch: int,
        entry: str,
        checkpoint: bool,
        chunks: int,
        about: bytes,
        result: bytes,
    ) -> Asked:
        """OK note | LOST epoch | MISSING."""
        return self._run(
            "note_step",
            (keys.journal, keys.lease, keys.task),
            (epoch, raw(entry), "true" if checkpoint else "false", chunks, about, result),
        )

    def keep_part(
        self, keys: TaskKeys, *, epoch: int, entry: str, number: int, data: bytes
    ) -> Asked:
        """OK number | STALE | LOST epoch | MISSING."""
        return self._run(
            "keep_part",
            (keys.journal, keys.lease, keys.task),
            (epoch, raw(entry), number, data),
        )

    def read_journal(self, keys: TaskKeys) -> Asked:
        """OK notes."""
        return self._run("read_journal", (keys.journal, keys.task), (_SLICE,))
