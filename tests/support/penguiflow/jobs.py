"""Jobs of PenguiFlow's scheduler, stores of them, and what a scheduler spawns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penguiflow.sessions.scheduler import JobDefinition, ScheduleConfig

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowJobStore, create_job_store

NOW = datetime.now(UTC)
BRIEF = timedelta(milliseconds=80)
# Long enough to be renewed in time where the machine stands still for a while.
KEPT_MS = 500
KEPT = timedelta(milliseconds=KEPT_MS)


def make(settings: Settings, **options: Any) -> PenguiflowJobStore:
    """Make a store on a namespace."""
    url = options.pop("url", settings.url.get_secret_value())
    return create_job_store(url=url, namespace=settings.namespace, **options)


def job(job_id: str, *, due: datetime | None = NOW, every: int | None = None, **more: Any) -> Any:
    """Make a job that is due now."""
    schedule = ScheduleConfig(next_run_at=due, interval_s=every)
    fields: dict[str, Any] = {"session_id": "s", **more}
    return JobDefinition(job_id=job_id, schedule=schedule, **fields)


def ids(jobs: Sequence[JobDefinition]) -> list[str]:
    """Give the ids of jobs."""
    return [found.job_id for found in jobs]


class Spawned(list[str]):
    """Notes what a scheduler spawns; ``fails`` names jobs whose spawning fails."""

    def __init__(self, *fails: str) -> None:
        super().__init__()
        self.fails = fails

    async def __call__(self, found: JobDefinition) -> str:
        """Spawn a job."""
        self.append(found.job_id)
        if found.job_id in self.fails:
            raise RuntimeError("a secret payload")
        return ""
