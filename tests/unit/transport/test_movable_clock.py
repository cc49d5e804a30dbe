"""Only a store that a test makes for it has a clock that can be moved."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError
from redis_state.scripts import SCRIPTS
from redis_state.testing.pool import ClockSettings
from redis_state.transport.sending.sender import Sender
from redis_state.transport.transport import Transport

MINE = "test-clock-mine"


def settings(kind: type[Settings], url: str = "redis://h", **options: Any) -> Settings:
    return kind(url=SecretStr(url), **options)


def test_no_setting_and_no_variable_gives_a_store_such_a_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_HAS_TEST_CLOCK", "1")
    plain = settings(Settings)
    assert plain.has_test_clock is False
    with pytest.raises(ValidationError, match="has_test_clock"):
        settings(Settings, has_test_clock=True)
    monkeypatch.setenv("REDIS_STATE_NAMESPACE", MINE)
    with pytest.raises(ConfigError, match="namespace: one that begins with test-clock-"):
        RedisStateStore(settings(Settings))


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("redis://h", {"namespace": "rs"}, "namespace: one with a test clock"),
        ("redis+cluster://h", {"namespace": MINE}, "url: a test clock needs one server"),
        ("redis://h", {"namespace": MINE, "queue_url": SecretStr("redis://q")}, "queue_url: "),
    ],
)
def test_such_a_clock_is_refused_where_it_cannot_be(
    url: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        Transport(settings(ClockSettings, url, **options))


async def test_other_stores_send_their_scripts_as_they_are() -> None:
    plain, moved = Transport(settings(Settings)), Transport(settings(ClockSettings, namespace=MINE))
    assert type(plain.sender) is Sender
    assert type(moved.sender) is not Sender
    for transport in (plain, moved):
        await transport.aclose(drain_s=0)


def test_scripts_read_the_time_in_one_place_and_no_script_reads_the_shift() -> None:
    reading = [script.text for script in SCRIPTS.values() if "'TIME'" in script.text]
    assert len(reading) > 40
    assert all(text.count("'TIME'") == text.count("redis.call('TIME')") == 1 for text in reading)
    assert [name for name, script in SCRIPTS.items() if "shifted_time" in script.text] == []
    assert not any(
        word in script.text for script in SCRIPTS.values() for word in ("clock-", '"TIME"')
    )
