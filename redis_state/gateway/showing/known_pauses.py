"""A pause by its public id, open or resolved: whose it is, what it is about, who decided it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from redis_state.errors import CorruptState
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import JOB_FIELDS, job_in
from redis_state.transport.keys import is_pause_id
from redis_state.worker.tasks.waitpoints.pause_model import name_of, token_of
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key

_FIELDS = ("task", "state", "payload", "actor", "at", "decision", "schema")


@dataclass(frozen=True, slots=True)
class KnownPause:
    """A pause. ``decides`` is what decides it here: it leaves the process with no answer."""

    pause_id: str
    session_id: str
    task_id: str
    name: str
    tags: list[str]
    is_open: bool
    revealed: bool
    has_form: bool
    decides: str = field(repr=False)
    actor: str | None = None
    at: datetime | None = None
    decision: Any = field(default=None, repr=False)
    # What it asks, as its token has it.
    about: bytes = field(default=b"{}", repr=False)


async def read_known(
    store: RedisStateStore, pause_id: str, *, hidden: bool = False
) -> KnownPause | None:
    """Return a pause by its id, for as long as it is kept; None for a token, or anything else.

    ``hidden``: also one that its handler did not reveal.
    """
    if not is_pause_id(pause_id):
        return None
    key = token_key(store, pause_id)
    reply = store.transport.commands.hmget(key, *_FIELDS)
    found = await store.base.scripts.read(reply, key, command="HMGET")
    owner, state, about, actor, at, decision, form = found
    if not owner:
        return None
    try:
        session_id, task_id, entry = codec.decode(owner)
        facts = as_object(about or b"{}")
    except (ValueError, TypeError) as error:
        raise CorruptState(key, f"not a pause: {codec.reason_of(error)}") from None
    revealed = bool(facts.get("revealed"))
    if not revealed and not hidden:
        return None
    decides = pause_id
    if not revealed:
        task = store.base.keys.task(session_id, task_id)
        job = job_in(await store.transport.commands.hmget(task, *JOB_FIELDS))
        if job is None:
            return None
        decides = token_of(session_id, as_object(job)["secret"], entry)
    try:
        return KnownPause(
            pause_id=pause_id,
            session_id=session_id,
            task_id=task_id,
            name=name_of(entry, about),
            tags=[str(tag) for tag in facts.get("tags", ())],
            is_open=state == b"open",
            revealed=revealed,
            has_form=form is not None,
            decides=decides,
            actor=None if actor is None else actor.decode("utf-8", "surrogatepass"),
            at=None if at is None else datetime.fromtimestamp(int(at) / 1000, UTC),
            decision=None if decision is None else store.base.payloads.decode(decision),
            about=about or b"{}",
        )
    except (ValueError, TypeError, OSError) as error:
        raise CorruptState(key, f"not a pause: {type(error).__name__}") from None
