"""What a call under a key chose: a repeated call is to choose the same.

Handler and input are in the task's record. What else was chosen may have changed since, as
attributes do, or be no more than a time from then. So its digest stands there beside them.
"""

from __future__ import annotations

from pydantic import BaseModel

from redis_state.gateway.calls import ApiCall
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.sent import SentContent


def chosen_by(call: ApiCall, what: str, body: BaseModel, *compared: str) -> SentContent | None:
    """Return the digest of what a call under a key chose, beside the fields that are compared
    otherwise; None without a key.
    """
    if call.idempotency_key() is None:
        return None
    # Without defaults: those of a newer gateway have more names.
    chosen = body.model_dump(exclude={*compared}, exclude_defaults=True)
    return SentContent.of(call.store.base.payloads, what, chosen)


async def check_chosen(
    call: ApiCall, session_id: str, task_id: str, chosen: SentContent | None
) -> None:
    """Compare it with that of the task under the key. Errors: KeyReused.

    A task without a digest was made by an earlier release, or not under a key.
    """
    if chosen is None:
        return
    key = call.store.tasks.keys(session_id, task_id).task
    with behind_a_write(call.store.transport.address):
        kept = await call.store.transport.commands.hget(key, "sent")
    if kept is not None:
        chosen.check_kept(kept)
