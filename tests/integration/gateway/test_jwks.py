"""The public keys of an identity provider: when they are fetched, and who waits for it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.errors import ConfigError
from redis_state.gateway import AnyOf, JwtAuthenticator, Unauthenticated, create_gateway
from redis_state.gateway.auth.jwt import Jwks
from tests.support.browser.console import Browser
from tests.support.http.credentials import bearer_of, claims_of, status_of
from tests.support.http.gateway import tokens

# What the next fetches get in place of the key, and whether they are answered.
answers: list[tuple[int, bytes]] = []
answering = threading.Event()


@pytest.fixture
def jwks() -> Iterator[tuple[str, Any, list[int]]]:
    """Serve one public key; count how often it is fetched."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
    document = json.dumps({"keys": [public | {"kid": "k", "alg": "RS256", "use": "sig"}]}).encode()
    fetched: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(1)
            answering.wait(60)
            status, body = answers.pop(0) if answers else (200, document)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
            pass

    answers.clear()
    answering.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/jwks", key, fetched
    answering.set()
    server.shutdown()
    thread.join()
    server.server_close()


async def test_public_keys_of_a_jwks_sign_and_cannot_be_taken_for_secrets(
    store: RedisStateStore, jwks: tuple[str, Any, list[int]]
) -> None:
    url, key, fetched = jwks
    auth = JwtAuthenticator(jwks_url=url, audience="agents")
    claims = claims_of(aud="agents")
    good = jwt.encode(claims, key, "RS256", headers={"kid": "k"})
    assert await status_of(store, auth, **bearer_of(good)) == 200
    public = json.dumps({"kid": "k"})
    forged = [
        _hand_made({"alg": "HS256", "kid": "k"}, claims, public),
        _hand_made({"alg": "none", "kid": "k"}, claims, ""),
        jwt.encode(claims, key, "RS512", headers={"kid": "k"}),
        jwt.encode(claims, key, "RS256"),
    ]
    for token in forged:
        assert await status_of(store, auth, **bearer_of(token)) == 401
    for _ in range(5):
        unknown = jwt.encode(claims, key, "RS256", headers={"kid": "other"})
        assert await status_of(store, auth, **bearer_of(unknown)) == 401
    assert len(fetched) <= 2


async def test_keys_of_a_jwks_hold_while_it_cannot_be_read_and_end_when_they_are_removed(
    store: RedisStateStore, jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key, fetched = jwks
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    keys = Jwks(url)
    header = {"kid": "k", "alg": "RS256"}
    await asyncio.gather(*(keys.key("", header) for _ in range(20)))
    # All that came together waited for one fetch.
    assert len(fetched) == 1
    monkeypatch.setattr(keys, "_lifespan_s", 0.0)
    for answer in [(500, b""), (200, b"no JSON"), (200, b"{}")]:
        answers[:] = [answer]
        # It waits for the fetch: with such a lifespan no outage is known.
        await keys.key("", header)
        await has_fetched(keys)
    assert len(fetched) == 4
    answers.clear()
    await keys.key("", header)
    await has_fetched(keys)
    other = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "new", "alg": "RS256"}
    answers[:] = [(200, json.dumps({"keys": [other]}).encode())] * 2
    with pytest.raises(Unauthenticated):
        await keys.key("", header)
    await keys.key("", header | {"kid": "new"})


async def has_fetched(keys: Jwks) -> None:
    """Wait until the fetch that is under way has ended."""
    assert keys._fetching is not None
    await asyncio.wrap_future(keys._fetching)


async def test_a_jwks_that_does_not_answer_delays_nobody_whose_key_is_known(
    jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key, _ = jwks
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    keys, header = Jwks(url, timeout_s=60), {"kid": "k", "alg": "RS256"}
    await keys.key("", header)
    answering.clear()
    keys._read_at -= 301
    await keys.key("", header)
    assert keys._fetching is not None
    assert not keys._fetching.done()
    other = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "new", "alg": "RS256"}
    answers[:] = [(200, json.dumps({"keys": [other]}).encode())] * 2
    answering.set()
    await has_fetched(keys)
    # From then on the key that was removed is refused.
    keys._read_at -= 299
    with pytest.raises(Unauthenticated):
        await keys.key("", header)


async def test_keys_that_were_not_fetched_for_long_are_fetched_first(
    jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    keys, header = Jwks(jwks[0]), {"kid": "k", "alg": "RS256"}
    await keys.key("", header)
    answers[:] = [(200, b'{"keys": []}'), (200, b'{"keys": []}')]
    keys._read_at -= 601
    await keys.key("", header)
    # No set of keys is empty: it could not be read.
    assert len(jwks[2]) == 2
    answering.clear()
    await keys.key("", header)
    keys._read_at -= 3_000
    answering.set()
    with pytest.raises(Unauthenticated):
        await keys.key("", header)


async def test_a_fetch_without_an_end_holds_nobody_up_and_is_given_up(
    jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key, fetched = jwks
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    keys, header = Jwks(url, timeout_s=60), {"kid": "k", "alg": "RS256"}
    await keys.key("", header)
    # As of a server that sends a byte now and then.
    answering.clear()
    monkeypatch.setattr(keys, "_longest_wait_s", 0.01, raising=False)
    keys._read_at -= 601
    async with asyncio.timeout(30):
        await keys.key("", header)
        with pytest.raises(Unauthenticated) as unknown:
            await keys.key("", header | {"kid": "new"})
    assert unknown.value.passing
    endless, held = keys._fetching, answering
    assert endless is not None
    assert not endless.done()
    # Another one is begun, and what the first one says at last is not heard.
    monkeypatch.setattr(Jwks, "_LONGEST_FETCH_S", 0.0)
    monkeypatch.setitem(globals(), "answering", threading.Event())
    answering.set()
    other = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "new", "alg": "RS256"}
    answers[:] = [(200, json.dumps({"keys": [other]}).encode())]
    monkeypatch.setattr(keys, "_longest_wait_s", 60)
    await keys.key("", header | {"kid": "new"})
    held.set()
    await asyncio.wrap_future(endless)
    assert [*keys._keys] == ["new"]
    assert len(fetched) == 3


async def test_fetches_without_an_end_are_few(
    jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, fetched = jwks
    for name in ("_AGAIN_S", "_LONGEST_FETCH_S"):
        monkeypatch.setattr(Jwks, name, 0.0)
    keys = Jwks(url, timeout_s=60)
    monkeypatch.setattr(keys, "_longest_wait_s", 0.01)
    answering.clear()
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await keys.key("", {"kid": "k", "alg": "RS256"})
    threads = [each for each in threading.enumerate() if each.name == "jwks"]
    assert len(threads) == 8
    answering.set()
    for each in threads:
        await asyncio.to_thread(each.join)
    # They have ended, so another one begins.
    monkeypatch.setattr(keys, "_longest_wait_s", 60)
    keys._read_at -= 601
    await keys.key("", {"kid": "k", "alg": "RS256"})
    assert len(fetched) == 9


async def test_a_token_that_cannot_be_judged_yet_is_refused_for_now_only(
    store: RedisStateStore, jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key, _ = jwks
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    auth = JwtAuthenticator(jwks_url=url, audience="agents")
    token = jwt.encode(claims_of(aud="agents"), key, "RS256", headers={"kid": "k"})
    for way in (auth, AnyOf(tokens, auth), AnyOf(auth, tokens)):
        answers[:] = [(500, b""), (200, b'{"keys": [{"kty": "RSA", "n": 5, "e": []}]}')]
        assert [await status_of(store, way, **bearer_of(token)) for _ in range(2)] == [503, 503]
    app = create_gateway(store, auth=auth, console=True)
    answers[:] = [(500, b"")]
    browser = Browser(app)
    assert (await browser.log_in(token)).status == 503
    answers[:] = [(500, b"")]
    form = await browser.http.get("/console/login", headers=bearer_of(token))
    assert form.status_code == 200
    assert not answers
    await app.aclose()
    assert await status_of(store, auth, **bearer_of(token)) == 200
    # The keys are known: this one is none of them.
    other = jwt.encode(claims_of(aud="agents"), key, "RS256", headers={"kid": "other"})
    assert await status_of(store, auth, **bearer_of(other)) == 401


async def test_a_fetch_that_failed_long_ago_does_not_let_a_removed_key_pass(
    jwks: tuple[str, Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jwks, "_AGAIN_S", 0.0)
    url, key, _ = jwks
    keys, header = Jwks(url), {"kid": "k", "alg": "RS256"}
    await keys.key("", header)
    answers[:] = [(500, b"")]
    keys._read_at -= 601
    await keys.key("", header)
    other = json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "new", "alg": "RS256"}
    answers[:] = [(200, json.dumps({"keys": [other]}).encode())]
    keys._failed_at -= 301
    with pytest.raises(Unauthenticated):
        await keys.key("", header)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.example.com/",
        "http://localhost@example.com/",
        "http://[::1",
        "file:///etc/passwd",
        "https:///jwks",
    ],
)
def test_a_jwks_is_read_by_tls_or_from_this_machine(url: str) -> None:
    with pytest.raises(ConfigError):
        Jwks(url)


def _hand_made(header: dict[str, str], claims: dict[str, Any], secret: str) -> str:
    parts = [header, claims | {"exp": 4_000_000_000}]
    signed = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
    )
    mark = hmac.digest(secret.encode(), signed, hashlib.sha256)
    return (signed + b"." + base64.urlsafe_b64encode(mark).rstrip(b"=")).decode()
