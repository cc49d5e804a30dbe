"""One call of every script, with keys as the stores make them."""

from __future__ import annotations

from tests.support.script_calls import graphs, logs, pauses, queues, stores, tasks
from tests.support.script_calls.names import Call

CALLS: dict[str, Call] = {
    **graphs.CALLS,
    **logs.CALLS,
    **pauses.CALLS,
    **queues.CALLS,
    **stores.CALLS,
    **tasks.CALLS,
}
