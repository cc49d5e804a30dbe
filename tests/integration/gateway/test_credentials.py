"""Credentials: expired, replayed, foreign and forged ones open nothing, and stand in no log."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import jwt
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

import httpx

from redis_state import RedisStateStore
from redis_state.errors import ConfigError, InvalidField
from redis_state.gateway import (
    AnyOf,
    ApiKeys,
    BrowserTokens,
    HookLinks,
    JwtAuthenticator,
    Loopback,
    Public,
    create_gateway,
    make_api_key,
)
from redis_state.gateway.auth import files
from tests.support.http.credentials import bearer_of, claims_of, status_of
from tests.support.http.gateway import SECRET, Served, links, paused, stranger, tokens

OTHER = "another secret of the tests, also 32 bytes"
PAST = datetime(2020, 1, 1, tzinfo=UTC)


async def test_api_keys_are_known_by_their_digests(store: RedisStateStore, tmp_path: Path) -> None:
    key, kept = make_api_key("ann", ["read:*"])
    old, expired = make_api_key("ann", ["read:*"], expires_at=PAST)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document(), expired.document()]))
    assert key not in file.read_text()
    # A secret may contain the sign that stands before it.
    secret = key.partition(f"{kept.key_id}_")[2]
    assert len(secret) > 40
    assert secret not in repr(kept)
    keys = ApiKeys.from_file(file)
    assert await status_of(store, keys, **bearer_of(key)) == 200
    for wrong in (old, key[:-1], f"{key}x", "rsk_x_y", f"rsk_{kept.key_id}_", key.upper()):
        assert await status_of(store, keys, **bearer_of(wrong)) == 401
    assert await status_of(store, keys, authorization=f"Basic {key}") == 401
    assert await status_of(store, keys) == 401


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON"),
        ("{}", "no list"),
        ('[{"id": "a"}]', "key 0"),
        ('[{"id": "a", "sha256": "zz", "subject": "s", "scopes": []}]', "key 0"),
        ('[{"id": 1, "sha256": "%s", "subject": "s", "scopes": []}]' % ("0" * 64), "key 0"),
        ('[{"id": "a", "sha256": "%s", "subject": "", "scopes": []}]' % ("0" * 64), "subject"),
        ('[{"id": "a", "sha256": "%s", "subject": "s", "scopes": ["x:*"]}]' % ("0" * 64), "scopes"),
        ("[1]", "key 0"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_says_what_is_wrong(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        ApiKeys.from_file(file)


def test_two_keys_of_one_id_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    _, kept = make_api_key("ann", [])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document()] * 2))
    with pytest.raises(ConfigError, match="two keys"):
        ApiKeys.from_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        ApiKeys.from_file(tmp_path / "nothing")


async def test_a_file_of_keys_is_read_again_when_it_changes(
    store: RedisStateStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    (ann, of_ann), (bob, of_bob) = (make_api_key(name, ["read:*"]) for name in ("ann", "bob"))
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([of_ann.document()]))
    keys = ApiKeys.from_file(file)

    async def known() -> list[bool]:
        return [await status_of(store, keys, **bearer_of(key)) == 200 for key in (ann, bob)]

    assert await known() == [True, False]
    file.write_text(json.dumps([of_ann.document(), of_bob.document()]))
    assert await known() == [True, True]
    file.write_text(json.dumps([of_bob.document()]))
    assert await known() == [False, True]
    file.write_text("[{")
    assert await known() == [False, True]
    file.unlink()
    assert await known() == [False, True]
    # One line for each way to be unusable, however many have asked.
    logged = [line for line in caplog.messages if str(file) in line]
    assert len(logged) == 2
    file.write_text("[]")
    assert await known() == [False, False]


async def test_a_file_is_looked_at_once_a_second_at_most(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one")
    watched = files.WatchedFile(file, files.read_secrets)
    file.write_text("another one")
    watched._looked_at = monotonic() + 60
    assert watched() == "one"
    watched._looked_at = monotonic() - files._CHECK_S
    assert watched() == "another one"


def test_a_file_is_read_though_all_files_of_the_process_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource", reason="needs limits of open files")
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    file, opened = tmp_path / "secret", list[int]()
    file.write_text("one")
    watched = files.WatchedFile(file, files.read_secrets)
    file.write_text("another one")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.open(os.devnull, os.O_RDONLY)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, before[1]))
    try:
        # A reader may open it one time more, as soon as one is closed.
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="open files"):
            file.read_text()
        found = watched()
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found, len(opened) > 0) == ("another one", True)


def test_a_file_that_cannot_be_used_is_named_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    file = tmp_path / "secret"
    file.write_text("one")
    watched = files.WatchedFile(file, files.read_secrets)
    file.unlink()
    assert [watched(), watched()] == ["one", "one"]
    assert len(caplog.messages) == 1
    watched._said_at = monotonic() - files._REMIND_S
    assert watched() == "one"
    assert len(caplog.messages) == 2


async def test_a_secret_in_a_file_is_rotated_without_a_restart(
    store: RedisStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    from_file = BrowserTokens(file)
    old = from_file.mint("ann", ["read:*"])
    file.write_text(json.dumps({"2": OTHER, "1": SECRET}))
    new = from_file.mint("ann", ["read:*"])
    assert jwt.get_unverified_header(new)["kid"] == "2"
    for token in (old, new):
        assert await status_of(store, from_file, **bearer_of(token)) == 200
    for unusable in ("short", json.dumps({"2": "\ud800" * 40})):
        file.write_text(unusable)
        assert await status_of(store, from_file, **bearer_of(old)) == 200
    file.write_text(json.dumps({"2": OTHER}))
    assert await status_of(store, from_file, **bearer_of(old)) == 401
    assert await status_of(store, from_file, **bearer_of(new)) == 200


async def test_browser_tokens_expire_and_are_of_one_secret_and_audience(
    store: RedisStateStore,
) -> None:
    good = tokens.mint("ann", ["read:*"])
    assert await status_of(store, tokens, **bearer_of(good)) == 200
    # A bearer's token may be used again until it expires; it is no link, and a link is no token.
    assert await status_of(store, tokens, **bearer_of(good)) == 200
    foreign = [
        BrowserTokens(OTHER).mint("ann", ["read:*"]),
        BrowserTokens(SECRET, audience="staging").mint("ann", ["read:*"]),
        links.mint(f"s:{'0' * 40}", actor="ann"),
        jwt.encode({"sub": "ann", "scopes": ["read:*"]}, SECRET, "HS256"),
        jwt.encode(claims_of(exp=PAST), SECRET, "HS256"),
        jwt.encode(claims_of(), "", "none"),
        jwt.encode(claims_of(scopes="read:*"), SECRET, "HS384"),
        jwt.encode(claims_of(scopes=["everything"]), SECRET, "HS256"),
        jwt.encode(claims_of(sub=""), SECRET, "HS256"),
        jwt.encode(claims_of(), SECRET, "HS256", headers={"kid": "nope"}),
        good[:-3] + "abc",
        "a.b.c",
        "x" * 20_000 + ".b.c",
    ]
    for token in foreign:
        assert await status_of(store, tokens, **bearer_of(token)) == 401, token
    without = BrowserTokens(SECRET).mint("ann", [])
    assert await status_of(store, tokens, **bearer_of(without)) == 403


async def test_a_cookie_may_have_the_token_if_that_was_asked_for(store: RedisStateStore) -> None:
    token = tokens.mint("ann", ["read:*"])
    asked = BrowserTokens(SECRET, cookie="rs")
    assert await status_of(store, asked, cookie=f"rs={token}") == 200
    assert await status_of(store, tokens, cookie=f"rs={token}") == 401


async def test_secrets_are_rotated_by_their_kid(store: RedisStateStore) -> None:
    old, both = BrowserTokens({"1": SECRET}), BrowserTokens({"2": OTHER, "1": SECRET})
    assert await status_of(store, both, **bearer_of(old.mint("ann", ["read:*"]))) == 200
    new = both.mint("ann", ["read:*"])
    assert jwt.get_unverified_header(new)["kid"] == "2"
    assert await status_of(store, both, **bearer_of(new)) == 200
    assert await status_of(store, old, **bearer_of(new)) == 401


async def test_jwt_of_a_provider_name_their_scopes(store: RedisStateStore) -> None:
    auth = JwtAuthenticator({"k": SECRET}, audience="agents", issuer="https://id.example.com")

    def make(**more: Any) -> str:
        claims = claims_of(aud="agents", iss="https://id.example.com") | {"scopes": None} | more
        return jwt.encode(claims, SECRET, "HS256", headers={"kid": "k"})

    assert await status_of(store, auth, **bearer_of(make(scope="openid read:*"))) == 200
    assert await status_of(store, auth, **bearer_of(make(scopes=["read:*", 5]))) == 200
    assert await status_of(store, auth, **bearer_of(make(scope="openid"))) == 403
    assert await status_of(store, auth, **bearer_of(make(iss="https://evil.example.com"))) == 401
    assert await status_of(store, auth, **bearer_of(make(aud="others"))) == 401
    chosen = JwtAuthenticator(SECRET, audience="agents", scopes=lambda claims: claims["groups"])
    token = jwt.encode(claims_of(aud="agents", groups=["read:*"]), SECRET, "HS256")
    assert await status_of(store, chosen, **bearer_of(token)) == 200


async def test_loopback_lets_this_machine_in_and_nobody_else(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=Loopback())
    for host, status in [("127.0.0.1", 200), ("::1", 200), ("10.0.0.1", 401), ("evil", 401)]:
        transport = httpx.ASGITransport(app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:80") as http:
            assert (await http.get("/v1/queues")).status_code == status
    await app.aclose()


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
async def test_who_says_to_be_of_this_machine_is_not(store: RedisStateStore, header: str) -> None:
    proxied = pytest.importorskip("uvicorn.middleware.proxy_headers", reason="needs uvicorn")
    app = create_gateway(store, auth=AnyOf(tokens, Loopback()))
    # A server with FORWARDED_ALLOW_IPS=* believes everybody.
    served = proxied.ProxyHeadersMiddleware(app, "*")
    for host in ("203.0.113.9", "127.0.0.1"):
        transport = httpx.ASGITransport(served, client=(host, 1))
        headers = {header: "127.0.0.1" if header.startswith("X") else "for=127.0.0.1"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as http:
            assert (await http.get("/v1/queues")).status_code == 401
            named = {"authorization": f"Bearer {tokens.mint('ann', ['read:*'])}"}
            assert (await http.get("/v1/queues", headers=named)).status_code == 200
    await app.aclose()


async def test_several_ways_are_tried_and_public_is_said_by_name(store: RedisStateStore) -> None:
    key, kept = make_api_key("ann", ["read:*"])
    both = AnyOf(tokens, ApiKeys([kept]))
    assert await status_of(store, both, **bearer_of(key)) == 200
    assert await status_of(store, both, **bearer_of(tokens.mint("ann", ["read:*"]))) == 200
    assert await status_of(store, both, **bearer_of("a.b.c")) == 401
    assert await status_of(store, both) == 401
    public = Public(subject="everybody", scopes=["read:*"])
    assert await status_of(store, public) == 200
    with pytest.raises(ConfigError, match="auth"):
        create_gateway(store, auth=None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_what_cannot_be_a_credential_is_refused_where_it_is_made() -> None:
    with pytest.raises(ConfigError, match="32 bytes"):
        BrowserTokens("short")
    with pytest.raises(ConfigError, match="needed"):
        HookLinks({})
    with pytest.raises(ConfigError, match="one of"):
        JwtAuthenticator(audience="x")
    with pytest.raises(ConfigError, match="audience"):
        JwtAuthenticator(SECRET, audience="")
    with pytest.raises(ConfigError, match="https"):
        JwtAuthenticator(jwks_url="http://example.com/jwks", audience="x")
    with pytest.raises(InvalidField, match="ways"):
        AnyOf()
    for wrong in ("read", "read:", "read:task:x", "wipe:*", "read:*x", "read:stream:a//b", 5):
        with pytest.raises(InvalidField, match="scopes"):
            tokens.mint("ann", [wrong])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    for subject in ("", "x" * 201):
        with pytest.raises(InvalidField, match="subject"):
            tokens.mint(subject, [])
    with pytest.raises(InvalidField, match="ttl"):
        tokens.mint("ann", [], ttl=timedelta(days=2))
    with pytest.raises(InvalidField, match="pause_id"):
        links.mint("s.token", actor="ann")
    with pytest.raises(InvalidField, match="decision"):
        links.mint(f"s:{'0' * 40}", actor="ann", decision="maybe")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidField, match="ttl"):
        links.mint(f"s:{'0' * 40}", actor="ann", ttl=timedelta(days=400))


async def test_links_that_are_expired_foreign_or_of_no_pause_open_nothing(served: Served) -> None:
    await served.client.submit("ask", session_id="s", task_id="t")
    pause_id = await paused(served, "s", "t")
    claims = {"sub": "bob", "pause": pause_id, "decision": None, "jti": "x"}
    claims |= {"aud": "redis-state/hook"}
    now = datetime.now(UTC)
    wrong = [
        jwt.encode(claims | {"exp": PAST}, SECRET, "HS256"),
        jwt.encode(claims | {"exp": now + timedelta(hours=1)}, OTHER, "HS256"),
        HookLinks(SECRET, audience="staging").mint(pause_id, actor="bob"),
        tokens.mint("bob", ["admin:*"]),
        links.mint(f"s:{'0' * 40}", actor="bob"),
        "\N{SNOWMAN}",
    ]
    async with stranger(served.app) as http:
        for link in wrong:
            for response in (
                await http.get(f"/v1/hooks/{link}"),
                await http.post(f"/v1/hooks/{link}", json={"approved": True}),
                await http.post(f"/v1/hooks/{link}", data={"decision": "approve"}),
            ):
                assert response.status_code == 404
                assert link not in response.text
    state = await served.client.get("s", "t")
    assert state is not None
    assert state.status.value == "PAUSED"


async def test_without_links_there_are_none(store: RedisStateStore) -> None:
    link = links.mint(f"s:{'0' * 40}", actor="bob")
    assert await status_of(store, tokens, path=f"/v1/hooks/{link}") == 404


async def test_no_credential_stands_in_a_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # The caller's own log, which is not ours.
    caplog.set_level(logging.WARNING, "httpx")
    token = tokens.mint("ann", ["read:*"])
    link = links.mint(f"s:{'0' * 40}", actor="bob")
    seen: list[str] = []

    async def logging_app(scope: Any, receive: Any, send: Any) -> None:
        # As uvicorn writes its access log: of the same dict, when the answer begins.
        async def logged(message: Any) -> None:
            seen.append(f"{scope['path']} {scope['raw_path']!r} {scope['query_string']!r}")
            await send(message)

        await served.app(scope, receive, logged)

    async with stranger(logging_app, **bearer_of(token)) as http:
        await http.get("/v1/queues")
        await http.get(f"/v1/hooks/{link}")
        await http.post(f"/v1/hooks/{link}", json={"approved": True})
        await http.get(f"/agents/v1/agents/v1/Hooks//{link}", params={"next": link})
    assert len(seen) > 3
    for text in [*seen, caplog.text]:
        assert token not in text
        assert link not in text
        assert SECRET not in text
