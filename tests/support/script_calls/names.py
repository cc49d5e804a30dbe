"""The names that the calls share: ids of any text, and keys made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redis_state.scripts import (
    Reply,
    Scripts,
)
from redis_state.transport.key_groups import JobKeys
from redis_state.transport.keys import Keys

Call = Callable[[Scripts, Keys], Awaitable[Reply]]

MARK = b"1  o"
SESSION = "a{b}:*?[c] \ud800"


def job_keys(keys: Keys, job_id: str = SESSION) -> JobKeys:
    """Name a job's keys."""
    return JobKeys(keys.job(job_id), keys.jobs(), keys.jobs_of(SESSION), keys.jobs_due())
