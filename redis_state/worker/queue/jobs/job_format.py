"""How arq writes a job: what its own workers read, and what it costs to stay readable for them.

The queue's scripts add to what a job states since when it waits:
`lua/lib/queue/jobs/job_since.lua`.
"""

from __future__ import annotations

from time import time
from typing import Any, cast

from redis_state.serialization import codec

RUN_TASK = "run_task"
# How arq names cron jobs. They carry no arguments.
CRON_PREFIX = "cron:"

_NO_JOB: dict[str, Any] = {"t": None, "f": RUN_TASK, "a": [None], "k": {}, "et": 0}
# What datetime still reads.
_END_OF_TIME_MS = 253_402_300_799_000


def payload_key(job_id: str) -> str:
    """Return the key under which arq looks for a job."""
    return f"arq:job:{job_id}"


def picked_key(job_id: str) -> str:
    """Return the key by which an arq worker says that it has picked a job."""
    return f"arq:in-progress:{job_id}"


def payload_of(stated: Any) -> bytes:
    """Write a job that runs a task, as arq does."""
    now_ms = round(time() * 1000)
    return serialize({"t": None, "f": RUN_TASK, "a": [stated], "k": {}, "et": now_ms})


def stated_in(payload: bytes | None) -> Any:
    """Read what a job that runs a task states; None for any other."""
    job = None if payload is None else deserialize(payload)
    return job["a"][0] if job is not None and job["f"] == RUN_TASK else None


def serialize(job: dict[str, Any]) -> bytes:
    """Write a job as JSON. What is not JSON, an exception say, is its text: nothing to execute."""
    return codec.encode(job)


def deserialize(data: bytes) -> dict[str, Any]:
    """Read a job. What is none becomes one that names no task, and is dropped by its worker.

    arq itself would end the worker for some of them.
    """
    try:
        job: Any = codec.decode(data)
    except ValueError:
        job = None
    return cast("dict[str, Any]", job) if _is_job(job) else dict(_NO_JOB)


def _is_job(job: Any) -> bool:
    if not isinstance(job, dict):
        return False
    parts = cast("dict[str, Any]", job)
    arguments, made, tries = parts.get("a"), parts.get("et"), parts.get("t")
    called = parts.get("f")
    is_cron = isinstance(called, str) and called.startswith(CRON_PREFIX)
    return (
        (called == RUN_TASK or is_cron)
        and type(arguments) is list
        and len(arguments) == int(not is_cron)  # pyright: ignore[reportUnknownArgumentType]
        and parts.get("k") == {}
        and type(made) is int
        and 0 <= made < _END_OF_TIME_MS
        and (tries is None or type(tries) is int)
    )
