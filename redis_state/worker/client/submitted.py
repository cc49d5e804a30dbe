"""What was submitted under a caller's id: a repeated call is to submit the same."""

from __future__ import annotations

from typing import Any

from redis_state.errors import (
    ArchiveUnavailable,
    CorruptState,
    PayloadLost,
    PayloadStoreUnavailable,
    PayloadUnreadable,
    RetryRefused,
    TaskUnknown,
)
from redis_state.primitives.sent import SentContent
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.operate.copies import Copies

# An input that cannot be compared.
_NO_INPUT = (
    *(TaskUnknown, RetryRefused, CorruptState, ArchiveUnavailable),
    *(PayloadLost, PayloadUnreadable, PayloadStoreUnavailable),
)


async def check_submitted(
    store: RedisStateStore, session_id: str, task_id: str, *, handler: str, task_input: Any
) -> None:
    """Compare what a repeated call submits with its task. Errors: KeyReused.

    An input that cannot be read, or is gone, counts as the same.
    """
    payloads = store.base.payloads
    try:
        source = await Copies(store).source(session_id, task_id)
        known = await payloads.fetch(source.task_input, of="a task", field="input")
    except _NO_INPUT:
        return
    sent = SentContent.of(payloads, "task", handler, task_input, key=task_id)
    sent.check_same(source.handler, known)
