"""PenguiFlow's token store: upstream's promises, and what a shared one adds."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("penguiflow.tools.auth", reason="needs the published package")

from cryptography.fernet import Fernet
from penguiflow.tools.auth import InMemoryTokenStore, OAuthManager, OAuthProviderConfig

from redis_state import ConfigError, CorruptState, InvalidField, Settings
from redis_state.integrations.penguiflow import PenguiflowTokenStore, create_token_store
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.scripts.replies import HOUR, ask, lives

SECRET = "ya29.top-secret-token"
DAY_MS = 24 * HOUR


def make(settings: Settings, **options: Any) -> PenguiflowTokenStore:
    url = settings.url.get_secret_value()
    return create_token_store(url=url, namespace=settings.namespace, **options)


@pytest.fixture
async def tokens(settings: Settings) -> AsyncIterator[PenguiflowTokenStore]:
    async with make(settings) as made:
        yield made


@pytest.fixture(params=["upstream", "plain", "sealed"])
async def either(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Any]:
    """Give upstream's own store and ours, so that both are asked the same."""
    if request.param == "upstream":
        yield InMemoryTokenStore()
        return
    options = {"oauth_token_keys": Fernet.generate_key().decode()}
    async with make(settings, **(options if request.param == "sealed" else {})) as made:
        yield made


async def test_a_token_is_returned_as_it_was_stored_until_it_is_deleted(either: Any) -> None:
    assert await either.get("user", "github") is None
    for token in ("first", "second", "", "tökén \U0001f427 \x00", "x" * 5000):
        await either.store("user", "github", token, None)
        assert await either.get("user", "github") == token
    await either.delete("user", "github")
    await either.delete("user", "github")
    assert await either.get("user", "github") is None


async def test_users_and_providers_are_kept_apart(either: Any) -> None:
    pairs = [("a", "b:c"), ("a:b", "c"), ("", "x"), ("x", ""), ("a", "b"), ("A", "b")]
    for user, provider in pairs:
        await either.store(user, provider, f"{user}|{provider}", time.time() + 60)
    assert [await either.get(*pair) for pair in pairs] == ["|".join(pair) for pair in pairs]


async def test_an_expired_token_is_none(either: Any) -> None:
    await either.store("user", "github", "old", time.time() + 60)
    await either.store("user", "github", "new", time.time() - 1)
    assert await either.get("user", "github") is None


async def test_upstreams_manager_finds_the_token_in_another_store(settings: Settings) -> None:
    config = OAuthProviderConfig(
        "github", "GitHub", "https://a", "https://t", "id", "s", "https://r"
    )
    async with make(settings) as one, make(settings) as other:
        await one.store("user", "github", SECRET, time.time() + 60)
        manager = OAuthManager({"github": config}, token_store=other)
        assert await manager.get_token("user", "github") == SECRET


async def test_the_server_itself_drops_a_token_when_it_expires(
    tokens: PenguiflowTokenStore, scripts: Scripts
) -> None:
    key = tokens.base.keys.oauth_token("user", "github")
    seconds, _ = await ask(scripts, "TIME")
    await tokens.store("user", "github", SECRET, int(seconds) + 90)
    (left_ms,) = await lives(scripts, key)
    assert 80_000 < left_ms <= 90_000
    await tokens.store("user", "github", SECRET, int(seconds) + 2)

    async def gone() -> bool:
        return int(await ask(scripts, "EXISTS", key)) == 0

    await eventually(gone, "the server drops the token")
    assert await tokens.get("user", "github") is None
    await tokens.store("user", "github", SECRET, None)
    assert (await lives(scripts, key))[0] > 364 * DAY_MS
    await tokens.store("user", "github", SECRET, 0)
    assert await lives(scripts, key) == [-2]


@pytest.mark.parametrize("when", [float("nan"), float("inf"), "soon", 10**400])
async def test_a_time_that_is_none_is_refused_by_name(
    tokens: PenguiflowTokenStore, when: Any
) -> None:
    await tokens.store("user", "github", "kept", None)
    with pytest.raises(InvalidField, match="expires_at"):
        await tokens.store("user", "github", SECRET, when)
    with pytest.raises(InvalidField, match="token"):
        await tokens.store("user", "github", b"bytes", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert await tokens.get("user", "github") == "kept"


async def test_a_time_beyond_all_times_is_taken(tokens: PenguiflowTokenStore) -> None:
    await tokens.store("user", "github", SECRET, 1e300)
    assert await tokens.get("user", "github") == SECRET


async def test_sealed_the_server_never_sees_the_token(settings: Settings, scripts: Scripts) -> None:
    async with make(settings, oauth_token_keys=Fernet.generate_key().decode()) as sealed:
        await sealed.store("user", "github", SECRET, None)
        key = sealed.base.keys.oauth_token("user", "github")
        assert SECRET.encode() not in await ask(scripts, "GET", key)
        assert SECRET not in key
        assert await sealed.get("user", "github") == SECRET


async def test_keys_are_replaced_one_by_one(settings: Settings) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    async with make(settings) as before, make(settings, oauth_token_keys=old) as first:
        await before.store("u", "plain", "0", None)
        await first.store("u", "old", "1", None)
        async with (
            make(settings, oauth_token_keys=f"{new}, {old}") as both,
            make(settings, oauth_token_keys=new) as last,
        ):
            assert [await both.get("u", name) for name in ("plain", "old")] == ["0", "1"]
            await both.store("u", "new", "2", None)
            assert await last.get("u", "new") == "2"
            for wrong in (last, before):
                with pytest.raises(ConfigError, match="oauth_token_keys"):
                    await wrong.get("u", "old")
            with pytest.raises(ConfigError, match="oauth_token_keys"):
                await first.get("u", "new")


async def test_a_sealed_token_cannot_be_moved_to_another_user(
    settings: Settings, scripts: Scripts
) -> None:
    key = Fernet.generate_key().decode()
    async with make(settings, oauth_token_keys=key) as sealed:
        await sealed.store("rich", "bank", SECRET, None)
        keys = sealed.base.keys
        value = await ask(scripts, "GET", keys.oauth_token("rich", "bank"))
        for where in (("poor", "bank"), ("rich", "shop")):
            await ask(scripts, "SET", keys.oauth_token(*where), value, "PX", HOUR)
            with pytest.raises(CorruptState, match="another user"):
                await sealed.get(*where)
        odd = b"s" + Fernet(key).encrypt(b"not a row")
        await ask(scripts, "SET", keys.oauth_token("poor", "bank"), odd, "PX", HOUR)
        with pytest.raises(CorruptState, match="another user"):
            await sealed.get("poor", "bank")
        await ask(scripts, "SET", keys.oauth_token("poor", "bank"), b"?", "PX", HOUR)
        with pytest.raises(CorruptState, match="not a token"):
            await sealed.get("poor", "bank")


@pytest.mark.parametrize("keys", ["secret-but-short", "ok,", "é" * 44, ","])
def test_a_key_of_another_form_is_refused_without_telling_it(keys: str) -> None:
    with pytest.raises(ConfigError, match="oauth_token_keys") as caught:
        create_token_store(url="redis://localhost:1", oauth_token_keys=keys)
    assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_without_the_extra_keys_are_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(ConfigError, match=r"redis_state\[crypto\]"):
        create_token_store(oauth_token_keys=Fernet.generate_key().decode())


def test_keys_come_from_the_environment_and_are_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = Fernet.generate_key().decode()
    monkeypatch.setenv("REDIS_STATE_URL", "redis://:hidden@nobody.invalid:1/0")
    monkeypatch.setenv("REDIS_STATE_OAUTH_TOKEN_KEYS", key)
    made = create_token_store()
    shown = f"{made!r} {made.settings!r} {made.settings.model_dump()}"
    assert "nobody.invalid" in shown
    assert key not in shown
    assert "hidden" not in shown


async def test_no_log_and_no_error_tells_a_token(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    away = create_token_store(url="redis://127.0.0.1:1", call_timeout_s=0.2)
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
        await away.store("user", "github", SECRET, None)
    await away.aclose()
    async with make(settings) as tokens:
        await tokens.store("user", "github", SECRET, None)
    assert SECRET not in f"{caplog.text} {caught.value!r}"


def test_one_store_serves_one_event_loop_after_the_other(settings: Settings) -> None:
    tokens = make(settings)

    async def use(token: str) -> str | None:
        found = await tokens.get("user", "loop")
        await tokens.store("user", "loop", token, None)
        return found

    assert [asyncio.run(use("1")), asyncio.run(use("2")), asyncio.run(use("3"))] == [None, "1", "2"]


async def test_of_two_users_tokens_each_finds_his_own(settings: Settings) -> None:
    async with make(settings) as one, make(settings) as other:
        await asyncio.gather(*(one.store(f"u{n}", "p", str(n), None) for n in range(200)))
        found = await asyncio.gather(*(other.get(f"u{n}", "p") for n in range(200)))
    assert found == [str(n) for n in range(200)]
