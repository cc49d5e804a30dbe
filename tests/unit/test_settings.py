"""Settings: where they come from, what they refuse, what they never show."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from redis_state.errors import ConfigError
from redis_state.serialization.encryption import make_cipher
from redis_state.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"REDIS_STATE_{name.upper()}", raising=False)


def test_defaults_need_nothing() -> None:
    settings = Settings()
    assert settings.url.get_secret_value() == "redis://localhost:6379/0"
    assert settings.queue_url is None
    assert settings.namespace == "rs"


def test_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_URL", "redis://env")
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", "env")
    monkeypatch.setenv("REDIS_STATE_CALL_TIMEOUT_S", "2.5")
    monkeypatch.setenv("REDIS_STATE_PAUSE_TTL", "PT90S")
    monkeypatch.setenv("REDIS_STATE_EVENTS_TTL", "2 days")
    monkeypatch.setenv("REDIS_STATE_UNKNOWN", "x")
    settings = Settings(namespace="argument")
    assert settings.url.get_secret_value() == "redis://env"
    assert settings.namespace == "argument"
    assert settings.call_timeout_s == 2.5
    assert settings.pause_ttl == timedelta(seconds=90)
    assert settings.events_ttl == timedelta(days=2)


@pytest.mark.parametrize(
    ("variable", "written", "expected"),
    [
        ("updates_ttl", "90", timedelta(seconds=90)),
        ("durable_events_delay", " 0.5 ", timedelta(milliseconds=500)),
        ("durable_events_retention", "172800", timedelta(days=2)),
    ],
)
def test_a_duration_in_the_environment_may_be_seconds(
    monkeypatch: pytest.MonkeyPatch, variable: str, written: str, expected: timedelta
) -> None:
    monkeypatch.setenv(f"REDIS_STATE_{variable.upper()}", written)
    assert getattr(Settings(), variable) == expected


def test_a_retention_in_the_environment_may_be_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_ARCHIVE_RETENTION", '{"updates": "172800", "tasks": 172800}')
    assert Settings().archive_retention == dict.fromkeys(["updates", "tasks"], timedelta(days=2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("call_timeout_s", 0),
        ("call_timeout_s", float("nan")),
        ("connect_timeout_s", float("inf")),
        ("connect_timeout_s", -1),
        ("max_events_per_trace", -1),
        ("max_updates_per_session", 1.5),
        ("pause_ttl", timedelta(0)),
        ("memory_ttl", timedelta(microseconds=999)),
        ("events_ttl", "soon"),
        ("archive_share", 0.001),
        ("archive_share", 1.5),
        ("call_timeout", 3),
    ],
)
def test_unusable_setting_is_refused_by_name(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ValidationError, match=name):
        Settings(**given)


def test_passwords_are_not_shown() -> None:
    url = SecretStr("redis://:s3cret@h")
    settings = Settings(url=url, queue_url=url)
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump()}"
    wrong: dict[str, Any] = {"url": ["redis://:s3cret@h"]}
    with pytest.raises(ValidationError) as caught:
        Settings(**wrong)
    assert "s3cret" not in str(caught.value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().namespace = "other"  # type: ignore[misc]


def test_what_a_person_decides_on_waits_equally_long_wherever_it_waits() -> None:
    settings = Settings()
    week = timedelta(days=7)
    lives = (settings.pause_ttl, settings.task_pause_ttl, settings.pending_patch_ttl)
    assert lives == (week, week, week)


def test_files_are_read_where_they_are_named(tmp_path: Path) -> None:
    dotenv, unknown = tmp_path / ".env", tmp_path / "unknown.env"
    dotenv.write_text("REDIS_STATE_NAMESPACE=of-a-file\n")
    unknown.write_text("REDIS_STATE_UNKNOWN=x\n")
    (tmp_path / "REDIS_STATE_CALL_TIMEOUT_S").write_text("2.5")
    given: dict[str, Any] = {"_env_file": dotenv, "_secrets_dir": tmp_path}
    settings = Settings(**given)
    assert (settings.namespace, settings.call_timeout_s) == ("of-a-file", 2.5)
    given["_env_file"] = unknown
    with pytest.raises(ValidationError, match="unknown"):
        Settings(**given)


def test_settings_of_a_users_own_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnSettings(Settings):
        model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="OWN_")
        more: int = 1

    monkeypatch.setenv("OWN_NAMESPACE", "own")
    monkeypatch.setenv("OWN_MORE", "2")
    settings = OwnSettings()
    assert (settings.namespace, settings.more) == ("own", 2)


@pytest.mark.parametrize(
    ("given", "variable", "value"),
    [
        ({"_env_prefix": "APP_"}, "APP_ARCHIVE_RETENTION", '{"updates": "P365D"}'),
        ({"_env_prefix": ""}, "archive_retention", '{"updates": "P365D"}'),
        (
            {"_env_nested_delimiter": "__"},
            "REDIS_STATE_ARCHIVE_RETENTION__UPDATES",
            "P365D",
        ),
        ({"_env_prefix_target": "alias"}, "ARCHIVE_RETENTION", '{"updates": "P365D"}'),
        ({"_case_sensitive": True}, "REDIS_STATE_archive_retention", '{"updates": "P365D"}'),
        ({}, "Redis_State_Archive_Retention", '{"updates": "P365D"}'),
    ],
)
def test_variables_are_read_by_the_names_that_whoever_makes_settings_chose(
    given: dict[str, Any], variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert Settings(**given).archive_retention == {"updates": timedelta(days=365)}


@pytest.mark.parametrize("setting", ["payload_keys", "oauth_token_keys"])
def test_keys_that_are_set_and_empty_do_not_switch_encryption_off(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        make_cipher(SecretStr(""), setting=setting)
    assert make_cipher(None, setting=setting) is None
