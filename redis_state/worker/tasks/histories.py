"""The history of a task: what its runs recorded, in one piece that needs no server.

It is what a replay needs: the input, the journal with the results of all steps, and the version of
the handler. It holds no right: the secret that the tokens of pauses are made from is left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from redis_state.errors import CorruptState, InvalidField
from redis_state.models import TaskState
from redis_state.primitives.record import Stored
from redis_state.private_file import write_private
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.serialization.sealed import Sealed
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import job_of
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.tasks.recorded.archived import ArchivedJournal, load_archived
from redis_state.worker.tasks.recorded.inputs import read_input
from redis_state.worker.tasks.recorded.journal import Journals, StepRecord

ReadResult = Callable[[str, StepRecord], Awaitable[Any]]

FORMAT = 1
_STATES: TypeAdapter[TaskState] = TypeAdapter(TaskState)


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """A task, its input, and the journal of its runs, by entry."""

    namespace: str
    state: TaskState
    handler: str
    input: Any = field(repr=False)
    attempts: int
    journal: Mapping[str, Any] = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file that only its owner may read: it holds inputs and results.

        What is there stays until all is written. Errors: OSError, also if the file system lets
        others read it: then nothing is written.
        """
        write_private(path, self.document())

    def document(self) -> bytes:
        """Write it as JSON."""
        return codec.encode(
            {
                "format": FORMAT,
                "namespace": self.namespace,
                "handler": self.handler,
                "attempts": self.attempts,
                "task": _STATES.dump_python(self.state, mode="json"),
                "input": self.input,
                "journal": {entry: _written(note) for entry, note in self.journal.items()},
            }
        )


def load_history(path: str | Path) -> TaskHistory:
    """Read a file that `TaskHistory.save` or `redis-state history` wrote. Errors: InvalidField."""
    try:
        stated = as_object(Path(path).read_bytes())
        if stated["format"] != FORMAT:
            raise InvalidField("path", f"a history of format {stated['format']} is not known")
        return TaskHistory(
            namespace=str(stated["namespace"]),
            state=_STATES.validate_python(stated["task"]),
            handler=str(stated["handler"]),
            input=stated["input"],
            attempts=int(stated["attempts"]),
            journal={entry: _read(entry, note) for entry, note in stated["journal"].items()},
        )
    except OSError as error:
        raise InvalidField("path", f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidField):
            raise
        raise InvalidField("path", "is no history of a task") from None


async def read_history(store: RedisStateStore, session_id: str, task_id: str) -> TaskHistory | None:
    """Read a task's history from the store, else from its archive, if the settings name one.

    None if a host saved the task, or there is none. A running task may be further when this
    returns. Errors: CorruptState; PayloadUnreadable; PayloadLost; ArchiveUnavailable.
    """
    keys, named = store.tasks.keys(session_id, task_id), (session_id, task_id)
    try:
        record = await store.tasks.load_fields(session_id, task_id)
        if record is None:
            task = await load_archived(store, session_id, task_id)
            if task is None or not task.handler:
                return None
            kept = ArchivedJournal(store, task)
            journal = kept.read(whole=True)
            return await _history(store, named, task.as_stored, journal, kept.result)
        if "job" not in record.fields:
            return None
        journals = Journals(store.base)
        journal, _ = await journals.read(keys, whole=True)
        result = partial(journals.result, keys)
        return await _history(store, named, record, journal, result)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(keys.task, f"cannot be read: {type(error).__name__}") from None


async def _history(
    store: RedisStateStore,
    named: tuple[str, str],
    record: Stored,
    journal: Mapping[str, Any],
    result: ReadResult,
) -> TaskHistory:
    payloads, of = store.base.payloads, f"task {named[1]!r}"
    job = payloads.as_object(job_of(record.fields))
    given = read_input(payloads, record.fields, job, of=of)
    return TaskHistory(
        namespace=store.settings.namespace,
        state=await store.tasks.whole(store.tasks.read(*named, record)),
        handler=job["handler"],
        input=await payloads.fetch(given, of=of, field="input"),
        attempts=TaskStatusView.of(*named, record.fields).attempts,
        journal={entry: await _whole(result, entry, note) for entry, note in journal.items()},
    )


async def _whole(result: ReadResult, entry: str, note: Any) -> Any:
    if not isinstance(note, StepRecord) or not (note.chunks or type(note.result) is Sealed):
        return note
    return replace(note, result=await result(entry, note), chunks=0, sha256="")


def _written(note: Any) -> Any:
    if not isinstance(note, StepRecord):
        return note
    kept = asdict(note)
    del kept["chunks"], kept["sha256"]
    return kept


def _read(entry: str, note: Any) -> Any:
    return StepRecord(**note, chunks=0, sha256="") if entry.startswith("step:") else note
