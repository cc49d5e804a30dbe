"""Tasks that were found ended, and are inspected once more: many of them at once.

A busy worker ends a thousand tasks a second, and a sweeper inspects each of them a second later.
Nearly all are in the index as their records are. Those need no more than to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from redis_state.errors import NoConnection
from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView, task_of_entry
from redis_state.stores.task_index import stamp_of

# So many are read together; then there is a pause for what else runs on this loop.
_TOGETHER = 32
_PAUSE_S = 0.002
# Of a task that is in the index as it ended, these say all that its claim's end needs.
_READ = ("status", "version", "write", "updated_at", "queue", "attempts", "flow_key")

EndedTask = tuple[WatchClaim, tuple[str, str], TaskStatusView]


async def still_ended(
    store: RedisStateStore, claims: Sequence[WatchClaim]
) -> tuple[list[EndedTask], list[WatchClaim]]:
    """Read the tasks of entries that were found ended before.

    Return those that are in the index as they ended, and the entries of all others, which are to be
    inspected as usual: so are those that run in turn, and those that cannot be read.
    """
    ended: list[EndedTask] = []
    others: list[WatchClaim] = []
    left = iter(claims)
    while some := list(islice(left, _TOGETHER)):
        if ended or others:
            await asyncio.sleep(_PAUSE_S)
        tasks = [(claim, task_of_entry(claim.entry)) for claim in some]
        named = [(claim, task) for claim, task in tasks if task is not None and claim.again]
        others += [claim for claim, task in tasks if task is None or not claim.again]
        commands, keys = store.transport.commands, store.base.keys
        replies = await asyncio.gather(
            *(commands.hmget(keys.task(*task), *_READ) for _, task in named),
            return_exceptions=True,
        )
        for (claim, task), reply in zip(named, replies, strict=True):
            if isinstance(reply, NoConnection):
                # Its node is unreachable: it is due again when the claim runs out.
                continue
            found = None if isinstance(reply, BaseException) else _ended(claim, task, reply)
            if found is None:
                others.append(claim)
            else:
                ended.append((claim, task, found))
    return ended, others


def _ended(
    claim: WatchClaim, task: tuple[str, str], values: Sequence[bytes | None]
) -> TaskStatusView | None:
    fields = {name: value for name, value in zip(_READ, values, strict=True) if value is not None}
    try:
        found = TaskStatusView.of(*task, fields)
        stamp = stamp_of(found.status, found.version, found.write, updated_us=found.updated_us)
    except (ValueError, KeyError):
        return None
    is_as_listed = found.status.is_terminal and claim.stamp == stamp
    return found if is_as_listed and not found.in_turn else None
