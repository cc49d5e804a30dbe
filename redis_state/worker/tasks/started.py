"""A task that runs now: under which lease, and what its record and its journal hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from redis_state.errors import CorruptState
from redis_state.models import TaskState, TaskStatus
from redis_state.models.attributes import AttributeValue
from redis_state.primitives.lease import HeldLease
from redis_state.serialization import codec
from redis_state.serialization.sealed import Sealed
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import job_of
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.task_index import attributes_of
from redis_state.worker.observe.tracing import carried
from redis_state.worker.tasks.handed_back import HandedBack
from redis_state.worker.tasks.recorded.call_order import CallOrder
from redis_state.worker.tasks.recorded.inputs import read_input
from redis_state.worker.tasks.recorded.journal import Journals, steps_of
from redis_state.worker.tasks.recorded.replay import Replay
from redis_state.worker.tasks.usage import UsageMeter

# The cursor of an empty log.
_BEGINNING = "0-0"
# Why a task was not started that others may be able to run: this worker could not read it, or a
# later version of the library has written it.
UNREAD = "unread"
# How often a task was reopened when it paused last, and how much its journal had then.
_RECORDED = "recorded"
LEFT_TO_OTHERS = frozenset({UNREAD, "newer"})


# Not frozen, which would make it three times as long: there is one for each start.
@dataclass(slots=True)
class StartedRun:
    """A task that runs now: under which lease, as it stood, and what its journal holds.

    ``steered`` says whether there is steering of it, and ``heard_from_ms`` of which time: what is
    older may be an earlier task's of the id, whose record has expired. ``secret`` is what the
    tokens of its pauses and the ids of its children are made from. One that is ``isolated`` is not
    cancelled with its ``parent``. One that is ``forked`` has decisions of another task in its
    journal. ``void`` names the steering events of before it was reopened, which it was ``retries``
    times.
    """

    held: HeldLease
    state: TaskState
    handler: str
    input: Any
    attempts: int
    inbox: str | None
    journal: dict[str, Any]
    taken_over: bool
    trace: Mapping[str, str]
    secret: str = field(repr=False)
    replay: Replay = field(repr=False)
    order: CallOrder = field(repr=False)
    steered: bool = True
    heard_from_ms: int = 0
    queue: str | None = None
    parent: str | None = None
    parent_order: int = 0
    parent_retry: int = 0
    isolated: bool = False
    forked: bool = False
    in_turn: bool = False
    crashes: int = 0
    retries: int = 0
    handed_back: HandedBack = field(default_factory=HandedBack)
    void: Sequence[str] = ()
    attributes: dict[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])
    # Held by the call that sets attributes: each writes all of them.
    setting: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    meter: UsageMeter = field(default_factory=UsageMeter, repr=False)

    def waiting_fields(self) -> dict[str, bytes]:
        """Write what the record keeps of a run that pauses: what it used, and how much it recorded.

        To be written under the run's own mark only: the server has all entries that are counted.
        The count is of one ``retry``, which leaves entries out of the journal.
        """
        recorded = b"%d %d" % (self.retries, self.replay.done)
        return self.meter.fields() | {_RECORDED: recorded}


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Why a task was not started. ``left_ms`` is how long its holder's lease still runs."""

    reason: str
    left_ms: int = 0


async def load_started(
    store: RedisStateStore,
    session_id: str,
    task_id: str,
    held: HeldLease,
    fields: Mapping[str, bytes],
    *,
    recorded: bool,
    read: Sequence[Any],
    steered: bool,
    was_dropped: bool,
    keep: Callable[[], AbstractContextManager[object]],
) -> StartedRun:
    """Read what a run begins with, its journal if one is ``recorded``, and its input.

    What the start has ``read`` of the journal is not read again. ``keep`` renews the lease from the
    first wait on. Where steering of its time ``was_dropped``, its inbox begins at the log's
    beginning, which a reader is not given without a gap. Errors: PayloadUnreadable, PayloadLost,
    PayloadStoreUnavailable; ValueError, TypeError, KeyError; CorruptState for a journal that has
    less than it had when the task paused; BackendError.
    """
    written: tuple[dict[str, Any], int] = ({}, 0)
    with ExitStack() as kept:
        whole = bool(read) and not read[2]
        if recorded:
            if not whole:
                kept.enter_context(keep())
            keys = store.tasks.keys(session_id, task_id)
            written = await Journals(store.base).read(keys, whole=True, begun=read)
        started = _read(
            *(store, session_id, task_id, held, fields),
            written=written,
            steered=steered,
            was_dropped=was_dropped,
        )
        if type(started.input) is not Sealed:
            return started
        if not recorded or whole:
            kept.enter_context(keep())
        of = f"task {task_id!r}"
        task_input = await store.base.payloads.fetch(started.input, of=of, field="input")
        return replace(started, input=task_input)


def _read(
    store: RedisStateStore,
    session_id: str,
    task_id: str,
    held: HeldLease,
    fields: Mapping[str, bytes],
    *,
    written: tuple[dict[str, Any], int],
    steered: bool,
    was_dropped: bool,
) -> StartedRun:
    payloads, of = store.base.payloads, f"task {task_id!r}"
    job = payloads.as_object(job_of(fields))
    for name in ("document", "progress"):
        payloads.need_all(fields.get(name), of=of, field=name)
    found = TaskStatusView.of(session_id, task_id, fields)
    journal, known = written
    replay = Replay(held, journal, known=known, write=payloads.lane)
    recorded = _recorded(fields, retry=found.retries)
    if replay.done < recorded:
        lost = f"it has {replay.done} of the {recorded} entries that were recorded in it"
        raise CorruptState(store.tasks.keys(session_id, task_id).journal, lost)
    return StartedRun(
        held=held,
        state=store.tasks.read_fields(session_id, task_id, fields),
        handler=job["handler"],
        input=payloads.need(read_input(payloads, fields, job, of=of), of=of, field="input"),
        attempts=found.attempts,
        inbox=fields.get("inbox", b"").decode() or (_BEGINNING if was_dropped else None),
        journal=journal,
        secret=job["secret"],
        replay=replay,
        order=CallOrder(journal),
        steered=steered,
        heard_from_ms=found.order // 1000 - store.tasks.ttl_ms(TaskStatus.COMPLETE.value),
        # Counted up by `start_task` when it takes over, and set back by a clean end of a run.
        taken_over=found.crashes > 0,
        crashes=found.crashes,
        retries=found.retries,
        handed_back=HandedBack.read(fields.get("handed_back"), retry=found.retries),
        trace=carried(job.get("trace")),
        queue=found.queue,
        parent=found.parent,
        parent_order=found.parent_order,
        parent_retry=found.parent_retry,
        isolated=found.isolated,
        forked="forked_from" in fields,
        in_turn=found.in_turn,
        void=codec.decode(fields.get("void", b"[]")),
        attributes=attributes_of(fields),
        meter=UsageMeter(
            spent_ms=int(fields.get("spent_ms", 0)),
            updates=int(fields.get("spent_updates", 0)),
            # A task that was reopened has its whole budget again.
            steps=len(steps_of(journal)) - int(fields.get("steps_before", 0)),
        ),
    )


def _recorded(fields: Mapping[str, bytes], *, retry: int) -> int:
    """Return how much a task's journal had at its last pause since it was reopened."""
    before, recorded = map(int, fields.get(_RECORDED, b"0 0").split())
    return recorded if before == retry else 0


def number_in(fields: Mapping[str, bytes], name: str) -> int:
    """Read a count; 0 for one that is damaged: who reads the whole record finds that."""
    try:
        return int(fields.get(name) or 0)
    except ValueError:
        return 0


def handed_back_of(fields: Mapping[str, bytes]) -> HandedBack:
    """Return how often a task was handed back, whatever else of it cannot be read."""
    retry = number_in(fields, "retries")
    try:
        return HandedBack.read(fields.get("handed_back"), retry=retry)
    except (ValueError, TypeError):
        return HandedBack(retry=retry)
