"""Everything that can be set, from arguments or from ``REDIS_STATE_*`` in the environment."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from redis_state.errors import ConfigError

_DAY = timedelta(days=1)

# A socket takes no more than some hundred years.
_Seconds = Annotated[float, Field(gt=0, le=3650 * _DAY.total_seconds(), allow_inf_nan=False)]
# 0 sets no limit: then a row's lifetime alone bounds a log.
_Count = Annotated[int, Field(ge=0)]
# The server counts in milliseconds: less than one would delete what is written.
_Lifetime = Annotated[timedelta, Field(ge=timedelta(milliseconds=1), le=3650 * _DAY)]


class Settings(BaseSettings):
    """Settings of a store. Arguments win over ``REDIS_STATE_<NAME>`` in the environment.

    Every lifetime counts on the server's clock. A row lives at least its ``*_ttl`` after it was
    written; a log's keys are gone at most one and a half times that after the last one.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="REDIS_STATE_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    url: SecretStr = SecretStr("redis://localhost:6379/0")
    queue_url: SecretStr | None = None
    namespace: str = "rs"

    call_timeout_s: _Seconds = 5.0
    connect_timeout_s: _Seconds = 5.0
    # How long the loop stays awake for the reply to a lone call: sooner there, at the cost of CPU.
    busy_poll_us: Annotated[int, Field(ge=0, le=10_000)] = 0

    max_events_per_trace: _Count = 50_000
    max_updates_per_session: _Count = 10_000
    max_steering_events_per_session: _Count = 10_000
    max_planner_events_per_trace: _Count = 50_000
    max_pending_patches: _Count = 32

    events_ttl: _Lifetime = 30 * _DAY
    updates_ttl: _Lifetime = 7 * _DAY
    steering_ttl: _Lifetime = 7 * _DAY
    planner_events_ttl: _Lifetime = 7 * _DAY
    bindings_ttl: _Lifetime = 30 * _DAY
    memory_ttl: _Lifetime = 90 * _DAY
    trajectories_ttl: _Lifetime = 30 * _DAY
    snapshots_ttl: _Lifetime = 90 * _DAY
    active_task_ttl: _Lifetime = 90 * _DAY
    finished_task_ttl: _Lifetime = 7 * _DAY
    agent_sessions_ttl: _Lifetime = 90 * _DAY
    # People decide on these, and may be away for days.
    pause_ttl: _Lifetime = 7 * _DAY
    task_pause_ttl: _Lifetime = 7 * _DAY
    resolved_token_ttl: _Lifetime = timedelta(hours=1)
    contexts_ttl: _Lifetime = 90 * _DAY
    pending_patch_ttl: _Lifetime = 7 * _DAY
    session_task_lease: _Lifetime = timedelta(seconds=30)
    kv_tombstone_ttl: _Lifetime = _DAY

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: Any) -> Any:
        if isinstance(value, bool):  # pydantic takes it for a number
            raise ValueError("a truth value is no setting")  # noqa: TRY004 - pydantic names the field
        return value

    # Fernet keys, separated by commas: the first one seals, all of them open.
    oauth_token_keys: SecretStr | None = None
    oauth_token_ttl: _Lifetime = 365 * _DAY
    jobs_ttl: _Lifetime = 365 * _DAY
    job_runs_ttl: _Lifetime = 30 * _DAY
    max_runs_per_job: _Count = 1_000
    job_lease: _Lifetime = timedelta(minutes=1)
    job_attempts: Annotated[int, Field(ge=1)] = 5
    a2a_task_ttl: _Lifetime = 30 * _DAY
    max_updates_per_a2a_task: _Count = 10_000


def make_settings(url: str | None = None, **options: Any) -> Settings:
    """Make settings from a server URL and options by name.

    Errors: ConfigError names an option that is not known or cannot be used, without its value.
    """
    known = Settings.model_fields
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}: known are {', '.join(known)}")
    if url is not None:
        options["url"] = url
    try:
        return Settings(**options)
    except ValueError as error:
        raise ConfigError(_problem(error)) from None


def _problem(error: ValueError) -> str:
    """Return which setting is wrong, without its value: it may be a secret."""
    listed = getattr(error, "errors", None)
    if listed is None:
        return str(error)
    problems = listed(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)
