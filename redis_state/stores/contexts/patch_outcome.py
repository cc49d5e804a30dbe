"""What became of a decision on a context patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from redis_state.models.tasks import StateUpdate
from redis_state.scripts import Reply
from redis_state.serialization import codec
from redis_state.stores.contexts.patch_updates import UpdateContent

PatchStatus = Literal["applied", "pending", "rejected"]


@dataclass(frozen=True, slots=True)
class PatchOutcome:
    """What became of a patch. ``first``: this very call did it; the next one finds it done.

    ``revision`` counts every change of the context, results included: each applied patch has one
    of its own. ``updates`` are those that this call has saved.
    """

    patch_id: str
    status: PatchStatus
    diverged: bool
    first: bool
    revision: int
    updates: Sequence[StateUpdate] = field(default=(), repr=False)


def outcome_of(patch_id: str, reply: Reply, updates: Sequence[StateUpdate]) -> PatchOutcome:
    """Read what became of a patch from the reply of a script."""
    first, decision, revision = reply.facts
    reported: UpdateContent = codec.decode(decision)
    return PatchOutcome(
        patch_id,
        reported["status"],
        reported["diverged"],
        first=bool(first),
        revision=int(revision),
        updates=tuple(updates) if first else (),
    )
