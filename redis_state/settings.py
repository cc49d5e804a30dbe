"""The settings of a store, from arguments or from ``REDIS_STATE_*`` in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from redis_state.errors import ConfigError

_DAY = timedelta(days=1)

# A socket takes no more than some hundred years.
_Seconds = Annotated[float, Field(gt=0, le=3650 * _DAY.total_seconds(), allow_inf_nan=False)]
# 0 sets no limit: then a row's lifetime alone bounds a log.
_Count = Annotated[int, Field(ge=0)]


def _read_duration(given: Any) -> Any:
    """Read text that is a number as seconds: pydantic does so for numbers only."""
    return float(given) if isinstance(given, str) and _NUMBER.fullmatch(given.strip()) else given


_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_Duration = Annotated[timedelta, BeforeValidator(_read_duration)]
# The server counts in milliseconds: less than one would delete what is written.
_Lifetime = Annotated[_Duration, Field(ge=timedelta(milliseconds=1), le=3650 * _DAY)]
# An archive and PostgreSQL are looked through for what has expired by days.
_KeptFor = Annotated[_Duration, Field(ge=_DAY, le=36500 * _DAY)]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A password, its user, and for how many seconds from now a server accepts them.

    Without a user, the URL's. Without ``valid_s`` the provider is called again after a minute.
    """

    password: SecretStr
    user: str | None = None
    valid_s: float | None = None

    def alike(self, other: Credentials | None) -> bool:
        """Return whether they log in alike."""
        return other is not None and (self.user, self.password) == (other.user, other.password)


# Gives the credentials of now. redis-py's providers will do, too.
Provider = Callable[[], Awaitable[Credentials]]
# What is archived only if it is chosen.
ArchiveClass: TypeAlias = Literal["trajectories", "agent_sessions", "events", "artifacts"]


class _Retention(dict[str, timedelta]):
    """How long each class of data is kept. Nobody changes it: settings have a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


_LEAST_SHARE = 0.01


def _archive_share(share: float) -> float:
    """Less than a hundredth would never end a round within its claims."""
    if 0 < share < _LEAST_SHARE:
        raise ValueError("must be 0, or from 0.01 to 1")
    return share


class Settings(BaseSettings):
    """Settings of a store. Arguments win over ``REDIS_STATE_<NAME>`` in the environment.

    Lifetimes count on the server's clock. A row of a log lives at least its ``*_ttl``. The log's
    keys expire at most one and a half times that after the last row.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="REDIS_STATE_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    url: SecretStr = SecretStr("redis://localhost:6379/0")
    """The server: `redis://`, `redis+sentinel://`, `redis+cluster://`, each also with `rediss`,
    `unix://` or `embedded://`. See the guide to servers.
    """
    queue_url: SecretStr | None = None
    """The server of the workers' queue, if it is another one than `url`."""
    credentials: Annotated[Any, Field(repr=False)] = None
    """Who gives the login, if it changes: a provider, or `package.module:name` of one.

    It serves the queue too, unless `queue_url` has a password. See the guide to credentials.
    """
    password_file: Path | None = None
    """A file that has the password, and may be replaced. It serves the queue like `credentials`."""
    namespace: str = "rs"
    """The first part of every key. Stores with different namespaces share nothing."""

    call_timeout_s: _Seconds = 5.0
    """The deadline of a call, in seconds. Retries happen within it."""
    connect_timeout_s: _Seconds = 5.0
    """The deadline of a new connection, in seconds."""
    busy_poll_us: Annotated[int, Field(ge=0, le=10_000)] = 0
    """How long the event loop stays awake for the reply to a lone call, in microseconds.

    It lowers the latency of single calls and costs CPU. 0 switches it off.
    """

    guarantee: Literal["fast", "replicated", "durable"] = "fast"
    """What an answer promises: see the guide to guarantees that can be chosen.

    `replicated`: the write is on `guarantee_replicas` replicas. `durable`: on the server's disk.
    """
    guarantee_replicas: Annotated[int, Field(ge=0, le=100)] | None = None
    """How many replicas have a write before its caller is answered.

    By default 1 if `replicated`. If `durable`, none; with more, they have it on their disks.
    """
    durable_trusted: bool = False
    """Believe a server that does not say how it syncs its disk, as a managed one may not."""

    max_events_per_trace: _Count = 50_000
    """The newest audit events of a trace that are kept. 0 sets no limit."""
    max_updates_per_session: _Count = 10_000
    """The newest updates of a session that are kept. 0 sets no limit."""
    max_steering_events_per_session: _Count = 10_000
    """The newest steering events of a session that are kept. 0 sets no limit."""
    max_planner_events_per_trace: _Count = 50_000
    """The newest planner events of a trace that are kept. 0 sets no limit."""
    max_pending_patches: _Count = 32
    """The patches of a session that may wait for a decision. 0 sets no limit."""

    events_ttl: _Lifetime = 30 * _DAY
    """The lifetime of an audit event."""
    updates_ttl: _Lifetime = 7 * _DAY
    """The lifetime of an update. A cursor is valid as long as the updates behind it are kept."""
    steering_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a steering event. While a worker's task is not terminal, as its record's."""
    planner_events_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a planner event."""
    bindings_ttl: _Lifetime = 30 * _DAY
    """The lifetime of a remote binding after its last save."""
    memory_ttl: _Lifetime = 90 * _DAY
    """The lifetime of a memory state after its last save, and of a key-value entry of a session."""
    trajectories_ttl: _Lifetime = 30 * _DAY
    """The lifetime of a trajectory after its last save."""
    snapshots_ttl: _Lifetime = 90 * _DAY
    """The lifetime of a task's snapshots after the last of them."""
    active_task_ttl: _Lifetime = 90 * _DAY
    """The lifetime of a task that is not terminal, after its last change."""
    finished_task_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a terminal task, after its last change. A host's save may add an eighth.

    With an archive it is two hours at least.
    """
    graph_threads_ttl: _Lifetime = 90 * _DAY
    """The lifetime of a thread of LangGraph after its last write."""
    graph_items_ttl: _Lifetime = 400 * _DAY
    """The lifetime of an item of LangGraph's store after its last use. One may have its own."""
    agent_sessions_ttl: _Lifetime = 90 * _DAY
    """The lifetime of an agent's session after its last save."""
    artifact_references_ttl: _Lifetime = 7 * _DAY
    """The lifetime of an artifact's reference, if `archive_classes` has `artifacts`.

    It is that of no artifact: the bytes go as `ArtifactRetentionConfig` says.
    """
    pause_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a host's pause. People decide on it and may be away for days."""
    task_pause_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a task's pause, if it sets no timeout of its own."""
    resolved_token_ttl: _Lifetime = timedelta(hours=1)
    """How long a resolved token returns who resolved it, when and how."""
    contexts_ttl: _Lifetime = 90 * _DAY
    """The lifetime of a session's context after its last write."""
    pending_patch_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a patch that waits for a decision."""
    session_task_lease: _Lifetime = timedelta(seconds=30)
    """The lease on a task of a PenguiFlow session. A task whose lease expired is FAILED."""
    kv_tombstone_ttl: _Lifetime = _DAY
    """How long the mark of a deleted key-value entry is kept."""

    @property
    def has_test_clock(self) -> bool:
        """Whether tests move the namespace's clock on: only with `redis_state.testing`'s own."""
        return False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leave out what names no setting: to look for each by itself takes over a millisecond."""
        sources = (init_settings, env_settings, dotenv_settings, file_secret_settings)
        if settings_cls is not Settings:  # one of a user's own may have names of its own
            return sources
        return tuple(source for source in sources if _names_any(source))

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes it for a number.
        if isinstance(value, bool) and info.field_name != "durable_trusted":
            raise ValueError("a truth value is no setting")
        return value

    @property
    def has_archive(self) -> bool:
        """Whether what has ended is archived."""
        return self.archive_url is not None or self.archive_store is not None

    payload_keys: SecretStr | None = None
    """Fernet keys that encrypt the payloads of tasks, separated by commas.

    The first key encrypts. All of them decrypt. See the guide to payloads.
    """
    payload_codec: Annotated[Any, Field(repr=False)] = None
    """A codec of your own that seals payloads: a `PayloadCodec`, or `package.module:name` of one.

    `payload_keys` then only read.
    """
    max_payload_bytes: Annotated[int, Field(ge=1, le=512 * 1024 * 1024)] = 32 * 1024 * 1024
    """The size of a payload at most: an input, a result, a step's result, an update. Of JSON."""
    claim_check_bytes: Annotated[int, Field(ge=0)] | None = None
    """Above this size, inputs and results stand in the store of claims. None: none do."""
    claim_check_url: str | None = None
    """The store of claims: `file:///folder`, `s3://bucket/prefix`, `gs://` or `az://`.

    The login of a bucket comes from its usual variables of the environment.
    It is read also if nothing is written there: leave it while tasks may have objects there.
    """
    claim_check_store: Annotated[Any, Field(repr=False)] = None
    """A store of claims of your own: a `ClaimStore`, or `package.module:name` of one."""
    archive_url: SecretStr | None = None
    """Where the tasks that have ended, and their sessions' updates, are kept: `postgresql://…`, or
    for Parquet files `file:///folder` or `s3://bucket/prefix`.

    All processes of a namespace need it. None: nothing is archived. See the guide to the archive.
    """
    archive_store: Annotated[Any, Field(repr=False)] = None
    """An archive of your own in its place: an `Archive`, or `package.module:name` of one."""
    archive_classes: frozenset[ArchiveClass] = frozenset()
    """What is archived besides tasks and updates: `["trajectories", "agent_sessions", "events",
    "artifacts"]`, of artifacts the references.

    By default nothing. All workers of a namespace need it, and all processes that save what is to
    be archived.
    """
    archive_share: Annotated[float, Field(ge=0, le=1), AfterValidator(_archive_share)] = 0.2
    """The part of one core that a worker archives with at most, from 0.01 to 1.

    Once tasks have waited for a quarter of their lifetime it is 1. 0 leaves all to another process,
    `redis-state archive run --follow`. See the guide to the archive.
    """
    archive_retention: Annotated[dict[str, _KeptFor], AfterValidator(_Retention)] = Field(
        default_factory=_Retention
    )
    """How long the archive keeps each class of data after its end: `{"updates": "P365D"}`.

    Classes are `tasks`, `updates`, `sessions` and those of `archive_classes`. What is not named is
    kept for ever.
    """
    durable_events: SecretStr | None = None
    """Where the audit events of traces are kept: `postgresql://…`. None: in Redis.

    All processes of a namespace need it. See the guide to durable events.
    """
    durable_events_mode: Literal["sync", "delayed"] = "sync"
    """When a save of an audit event returns: once PostgreSQL has it, or once Redis has it."""
    durable_events_delay: _Lifetime = timedelta(seconds=1)
    """Within which time `delayed` events move from Redis to PostgreSQL, while both reply."""
    # Not `_KeptFor | None`: pydantic-settings 2.3 reads one mark of a type in a union at most.
    durable_events_retention: Annotated[
        timedelta | None, Field(ge=_DAY, le=36500 * _DAY), BeforeValidator(_read_duration)
    ] = None
    """How long PostgreSQL keeps an audit event after it was saved: `P365D`. None: for ever.

    Workers remove what is older, once an hour.
    """
    oauth_token_keys: SecretStr | None = None
    """Fernet keys that encrypt OAuth tokens, separated by commas.

    The first key encrypts. All of them decrypt.
    """
    oauth_token_ttl: _Lifetime = 365 * _DAY
    """The lifetime of an OAuth token that has no expiry of its own."""
    jobs_ttl: _Lifetime = 365 * _DAY
    """The lifetime of a scheduled job beyond its next occurrence."""
    job_runs_ttl: _Lifetime = 30 * _DAY
    """The lifetime of the record of a job's run."""
    max_runs_per_job: _Count = 1_000
    """The newest runs of a job that are kept. 0 sets no limit."""
    job_lease: _Lifetime = timedelta(minutes=1)
    """How long a scheduler's claim on a due job is valid."""
    job_attempts: Annotated[int, Field(ge=1)] = 5
    """How many claims on one occurrence may expire before the job is given up."""
    schedules_ttl: _Lifetime = 400 * _DAY
    """The lifetime of a schedule that no worker looks at. Workers renew it once a day at least,
    until the schedule has ended.
    """
    streams_ttl: _Lifetime = 7 * _DAY
    """The lifetime of a durable stream after its last read or write, if its creator named none."""
    longest_stream_ttl: _Lifetime = 400 * _DAY
    """The longest lifetime that the creator of a durable stream may name."""
    max_rows_per_stream: _Count = 100_000
    """The newest rows of a durable stream that are kept, one for each append. 0 sets no limit."""
    max_bytes_per_stream: _Count = 64 * 1024 * 1024
    """The newest rows of a durable stream that are kept, in bytes. 0 sets no limit."""
    max_producers_per_stream: Annotated[int, Field(ge=1)] = 10_000
    """The producers of a durable stream whose batches are counted. More are refused."""
    a2a_task_ttl: _Lifetime = 30 * _DAY
    """The lifetime of an A2A task after its last update."""
    max_updates_per_a2a_task: _Count = 10_000
    """The newest updates of an A2A task that are kept. 0 sets no limit."""


def _names_any(source: PydanticBaseSettingsSource) -> bool:
    if isinstance(source, DotEnvSettingsSource):  # a name in a file that is not known is an error
        return bool(source.env_vars)
    if isinstance(source, EnvSettingsSource) and _has_our_names(source):
        return not _NAMES.isdisjoint(name.lower() for name in source.env_vars)
    return True


def _has_our_names(source: EnvSettingsSource) -> bool:
    """Return whether its names are `_NAMES`: a caller may choose others."""
    target = getattr(source, "env_prefix_target", "variable")
    return (source.env_prefix, source.env_nested_delimiter, target) == (_PREFIX, None, "variable")


_PREFIX = "REDIS_STATE_"
_NAMES = frozenset(f"{_PREFIX}{name}".lower() for name in Settings.model_fields)


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
        raise ConfigError(setting_problem(error, given=options)) from None


def setting_problem(error: ValueError, *, given: Container[str] = ()) -> str:
    """Return which settings are wrong, and the variable of each that is from the environment.

    ``given`` are those that were arguments. Values may be secrets, and are left out.
    """
    listed = getattr(error, "errors", None)
    if listed is None:
        # A variable that has to be JSON.
        field = _NO_JSON.search(str(error))
        return str(error) if field is None else _wrong(field[1], "is not JSON", given)
    problems = listed(include_input=False, include_url=False)
    return "; ".join(_wrong(".".join(map(str, p["loc"])), p["msg"], given) for p in problems)


_NO_JSON = re.compile(r'error parsing value for field "(\w+)"')


def _wrong(place: str, says: str, given: Container[str]) -> str:
    name = place.partition(".")[0]
    variable = f"{_PREFIX}{name.upper()}"
    is_variable = name not in given and variable in map(str.upper, os.environ)
    return f"{place}: {says}{f' (from {variable})' if is_variable else ''}"


def misspelt_variables() -> dict[str, str]:
    """Return variables of the environment that name no setting, and the one that each resembles."""
    known = {name.upper() for name in Settings.model_fields}
    resembled: dict[str, str] = {}
    for variable in sorted(os.environ):
        prefix, _, name = variable.upper().partition(_PREFIX)
        if not prefix and name and name not in known:
            for alike in get_close_matches(name, known, n=1, cutoff=_ALIKE):
                resembled[variable] = f"{_PREFIX}{alike}"
    return resembled


# PASSWORD and PASSWORD_FILE.
_ALIKE = 0.75
