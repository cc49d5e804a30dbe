"""Change who decides an open pause: a decider delegates, and the sweeper escalates.

Both are one step on the token, published as an update. A pause that may escalate has an
entry of its own on the watch list, put there before the pause is opened. So it escalates whatever
its task does meanwhile: run, wait for this pause, or wait for something else.

    crash before the entry          the pause is not open; the next run opens it
    between the entry and the pause the sweeper finds no pause and removes the entry; the next run
                                    puts it again before it opens the pause
    after the pause                 the sweeper has the entry
    sweeper, before the step        another sweeper repeats it when the claim runs out
    sweeper, after the step         the next sweep finds the escalation done
    the server went back            before the step: it is repeated; before the pause: as above
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redis_state.errors import DelegationRefused, InvalidTransition, TokenUnknown
from redis_state.primitives.token import raise_unless_won
from redis_state.primitives.watchlist.watchlist import Fate, WatchList
from redis_state.scripts import Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.transport.keys import is_pause_id
from redis_state.worker.tasks.move_parts import SKEW_MS, announcement
from redis_state.worker.tasks.waitpoints.ballots import (
    MAX_DECIDERS,
    name_of_actor,
    raise_unless_voted,
    rules_of,
)
from redis_state.worker.tasks.waitpoints.pause_model import name_of, notice
from redis_state.worker.tasks.waitpoints.pause_tokens import find_pause, token_key

_KIND = "pause"
_CHECK_SOON_MS = 2_000
# Three fields of the token for each who votes. Nobody delegates beyond twice as many deciders.
_MOST_FIELDS = 6 * MAX_DECIDERS
_SEATED = {
    "full": "the pause has too many deciders",
    "open": "already decides this pause",
    "delegated": "has delegated a vote of this pause",
    "retired": "was replaced in this pause",
}


async def delegate_vote(
    store: RedisStateStore,
    token: str,
    to: str,
    *,
    actor: str,
    session_id: str | None = None,
    task_id: str | None = None,
) -> None:
    """See `TaskClient.delegate`."""
    name_of_actor("actor", actor)
    name_of_actor("to", to)
    if actor == to:
        raise DelegationRefused(actor, to, reason="it is the same actor")
    found = await find_pause(store, token, session_id=session_id, task_id=task_id)
    state = await store.tasks.load(found.session_id, found.task_id)
    if state is None:
        raise TokenUnknown(expired=True)
    keys = store.tasks.keys(found.session_id, found.task_id)
    content = {"pause": name_of(found.entry, found.about), "delegated_by": actor, "to": to}
    reply = await store.base.scripts.delegate_pause(
        keys,
        token=found.key,
        actor=actor,
        to=to,
        most=_MOST_FIELDS,
        announcement=announcement(store, notice(state, content)),
    )
    if reply.word is ReplyCode.DENIED:
        raise InvalidTransition(found.task_id, current=reply.text(0), wanted="delegated")
    if reply.word is ReplyCode.REFUSED:
        if reply.text(0) != "open":
            raise_unless_voted(actor, reply.text(0))
        seat = reply.text(1).partition(" ")[0]
        raise DelegationRefused(actor, to, reason=_SEATED.get(seat, "has voted on this pause"))
    raise_unless_won(reply, store.base.payloads.decode)


async def open_watched(
    store: RedisStateStore, pause_id: str, write: Callable[[int], Awaitable[Reply]]
) -> Reply:
    """Put a pause that may escalate on the watch list, then open it by a script with a deadline.

    A pause that is not open before a sweeper may inspect its entry, and remove it, is not opened at
    all: then the entry is put again. ``write`` gets the deadline, in ms.
    """
    watch = WatchList(store.base.scripts, store.base.keys)
    delay_ms = _CHECK_SOON_MS
    while True:
        reply = await watch.covering(
            codec.encode([_KIND, pause_id]),
            lambda due_ms: write(due_ms - SKEW_MS),
            delay_ms=delay_ms,
        )
        if reply.word is not ReplyCode.EXPIRED:
            return reply
        delay_ms *= 2


def pause_of(entry: Any) -> str | None:
    """Return the pause of a decoded entry of the watch list; None for one of another kind."""
    match entry:
        case [kind, str(pause_id)] if kind == _KIND and is_pause_id(pause_id):
            return pause_id
        case _:
            return None


async def escalate_pause(store: RedisStateStore, pause_id: str) -> tuple[int, int | Fate]:
    """Carry out the escalations of a pause that are due, each once.

    Return how many this call has done, and in how many ms the next is due, or that none is left.
    Errors: BackendError.
    """
    key = token_key(store, pause_id)
    fields = ("task", "state", "payload", "escalate", "escalated")
    found: list[Any] = await store.transport.commands.hmget(key, *fields)
    if found[0] is None or found[1] != b"open":
        return 0, Fate.OUT
    session_id, task_id, entry = codec.decode(found[0])
    state = await store.tasks.load(session_id, task_id)
    if state is None or state.status.is_terminal:
        return 0, Fate.OUT
    name = name_of(entry, found[2])
    made = 0
    for number, (after_ms, to, replaces) in enumerate(rules_of(found[3])):
        if number < int(found[4] or 0):
            continue
        content = {"pause": name, "escalated": number + 1, "to": to, "replaces": replaces}
        reply = await store.base.scripts.escalate_pause(
            store.tasks.keys(session_id, task_id),
            token=key,
            number=number,
            after_ms=after_ms,
            replaces=replaces,
            announcement=announcement(store, notice(state, content)),
            actors=to,
        )
        if reply.word is ReplyCode.HELD:
            return made, int(reply.facts[0]) + 1
        if reply.word not in (ReplyCode.OK, ReplyCode.STALE):
            break
        made += reply.word is ReplyCode.OK
    return made, Fate.OUT
