"""Replay a stored history in a unit test, without a server.

    async def test_orders_of_last_week_go_on() -> None:
        report = await replay_history({"order": order}, load_history("order.json"))
        assert_fits(report)

The file is what `redis-state history SESSION TASK` wrote, also of an archived task. `read_history`
reads one from a store and its archive. Needs the extra ``worker``.
"""

from __future__ import annotations

from redis_state.worker.runs.replaying import ReplayReport, ReplayVerdict, replay_history
from redis_state.worker.tasks.histories import TaskHistory, load_history, read_history

__all__ = [
    "ReplayReport",
    "ReplayVerdict",
    "TaskHistory",
    "assert_fits",
    "load_history",
    "read_history",
    "replay_history",
]


def assert_fits(report: ReplayReport) -> None:
    """Check that a replayed task could continue. Errors: AssertionError says what does not fit."""
    if not report.fits:
        recorded = f" ({', '.join(report.recorded)})" if report.recorded else ""
        raise AssertionError(
            f"task {report.task_id}: {report.verdict.value}: {report.why}{recorded}"
        )
