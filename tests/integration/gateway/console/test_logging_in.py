"""Logging in to the console: what the cookie is, how long it lasts, what a form carries."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from starlette.requests import Request

from redis_state import RedisStateStore
from redis_state.errors import ConfigError, InvalidField
from redis_state.gateway import (
    ApiKeys,
    ConsoleOptions,
    GatewayLimits,
    Loopback,
    Principal,
    create_gateway,
    make_api_key,
)
from redis_state.gateway import app as gateway_app
from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.auth import files
from redis_state.gateway.auth.jwt import Secrets
from redis_state.gateway.console.assets import PINNED, digest
from redis_state.gateway.console.login.cookies import SealedLogin, open_login, seal_login
from redis_state.gateway.console.login.logins import Logins
from redis_state.gateway.streaming.hub import Hub
from tests.integration.gateway.console.conftest import AUTH, KEYS, LogIn
from tests.support.browser.console import Browser
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import SECRET, Served, paused, stranger, tokens


async def test_a_key_is_exchanged_for_a_cookie_that_scripts_and_other_sites_do_not_get(
    console: Served,
) -> None:
    browser = Browser(console.app)
    page = await browser.get("/inbox", tag="finance")
    assert "Log in" in page.text
    assert page.status == 200
    answered = await browser.http.post(
        page.form("/login").action,
        data={"credential": KEYS["ann"]},
        follow_redirects=False,
    )
    cookie = answered.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Secure", "Path=/console", "Max-Age="):
        assert part in cookie
    assert KEYS["ann"] not in cookie
    assert answered.status_code == 303
    assert answered.headers["location"] == "/console/inbox?tag=finance"
    assert "Log in" not in (await browser.get()).text


@pytest.mark.parametrize("credential", ["", "nonsense", "rsk_0_0", "é", "x" * 9_000])
async def test_what_is_no_key_gets_no_cookie(console: Served, credential: str) -> None:
    browser = Browser(console.app)
    page = await browser.log_in(credential)
    assert page.status == 401
    assert not browser.http.cookies
    assert credential == "" or credential not in page.source


async def test_logins_that_fail_stand_in_nobodys_way(console: Served) -> None:
    few = GatewayLimits(requests_per_s=0.001, burst=3)
    app = create_gateway(console.store, auth=AUTH, console=True, limits=few)
    eve, ann = Browser(app), Browser(app)
    assert [(await eve.log_in("nonsense")).status for _ in range(4)] == [401, 401, 401, 429]
    style = [(await ann.http.get("/console/static/console.css")).status_code for _ in range(9)]
    assert style == [200] * 9
    assert "Overview" in (await ann.log_in(KEYS["ann"])).text
    await app.aclose()


async def test_on_loopback_the_cookie_is_not_only_for_https(console: Served) -> None:
    for base, secure in (("http://127.0.0.1:8787", False), ("http://[::1]:8787", False)):
        browser = Browser(console.app, base=base)
        page = await browser.log_in(KEYS["ann"])
        assert "Overview" in page.text
        assert secure is any(each.secure for each in browser.http.cookies.jar)


async def test_behind_a_proxy_of_this_machine_the_cookie_is_for_https_where_that_is_used(
    console: Served,
) -> None:
    browser = Browser(console.app, base="https://127.0.0.1:8787")
    await browser.log_in(KEYS["ann"])
    assert [each.secure for each in browser.http.cookies.jar] == [True]


async def test_a_cookie_ends_with_its_credential(store: RedisStateStore) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    key, kept = make_api_key("ann", ["read:*"], expires_at=soon)
    app = create_gateway(store, auth=ApiKeys([kept]), console=ConsoleOptions(secret=SECRET))
    browser = Browser(app)
    await browser.log_in(key)
    (cookie,) = browser.http.cookies.jar
    assert cookie.expires is not None
    assert cookie.expires <= soon.timestamp() + 1
    # Another process with the same secret knows it; one with a secret of its own does not.
    for options, known in ((ConsoleOptions(secret=SECRET), True), (ConsoleOptions(), False)):
        other = create_gateway(store, auth=ApiKeys([kept]), console=options)
        moved = Browser(other)
        moved.http.cookies = browser.http.cookies
        assert ("Log in" not in (await moved.get()).text) is known
        await other.aclose()
    await app.aclose()


async def test_a_login_ends_with_its_key_and_has_the_scopes_that_the_key_has_now(
    console: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    monkeypatch.setattr(gateway_app, "Hub", partial(Hub, heartbeat_s=0.05))
    key, kept = make_api_key("ann", ["read:*", "steer:*"])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([kept.document()]))
    options = ConsoleOptions(secret=SECRET)
    app = create_gateway(console.store, auth=ApiKeys.from_file(file), console=options)
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    async with serving_asgi(app, stop=app.end_streams) as port:
        ann = Browser(app, base=f"http://127.0.0.1:{port}", over_socket=True)
        await ann.log_in(key)
        page = await ann.get("/task", session="s", task="t")
        page.form("/task/cancel")
        live, asked = f"{ann.mount}/console/task/live", {"session": "s", "task": "t"}
        async with ann.http.stream("GET", live, params=asked) as open_page:
            assert open_page.status_code == 200
            fewer = kept.document() | {"scopes": ["read:*"]}
            file.write_text(json.dumps([fewer]))
            assert "event: expired" in "".join([each async for each in open_page.aiter_text()])
        refused = await ann.send(page.form("/task/cancel"))
        assert refused.status == 403
        assert "Log in" not in (await ann.get()).text
        file.write_text("[]")
        assert (await ann.send(page.form("/task/cancel"))).status == 401
        assert "Log in" in (await ann.get()).text
        await ann.http.aclose()


def test_a_cookie_is_read_by_its_secret_alone_and_changed_by_nobody() -> None:
    keys, moment = Secrets(SECRET), datetime(2030, 1, 1, tzinfo=UTC)
    login = SealedLogin("rsk_abc_" + "s" * 2_000, moment)
    cookie = seal_login(keys, login)
    assert "rsk_" not in urlsafe_b64decode(cookie + "==").decode("latin-1")
    assert "sss" not in repr(login)
    assert open_login(keys, cookie) == login
    rotated = Secrets({"2": f"another {SECRET}", "1": SECRET})
    assert open_login(rotated, cookie) == login
    assert open_login(Secrets(f"another {SECRET}"), cookie) is None
    assert seal_login(keys, login) != cookie
    raw = bytearray(urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)))
    for at in (0, 16, len(raw) // 2, len(raw) - 33, len(raw) - 1):
        changed = bytearray(raw)
        changed[at] ^= 1
        assert open_login(keys, urlsafe_b64encode(changed).decode()) is None
    for nothing in ("", "a", "é", "\ud800", "=", "-" * 5_000, cookie[:-10], cookie + "AAAA"):
        assert open_login(keys, nothing) is None


def test_a_form_of_before_a_new_secret_is_taken_until_the_old_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHECK_S", 0.0)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    logins = Logins(tokens, ConsoleOptions(secret=file))
    request, ann = Request({"type": "http", "headers": []}), Principal("ann")
    old = logins.form_token(request, ann)
    file.write_text(json.dumps({"2": f"another {SECRET}", "1": SECRET}))
    assert logins.form_token(request, ann) != old
    logins.check_form(request, ann, old)
    logins.check_form(request, ann, logins.form_token(request, ann))
    file.write_text(json.dumps({"2": f"another {SECRET}"}))
    with pytest.raises(HttpProblem):
        logins.check_form(request, ann, old)


async def test_a_page_goes_back_to_itself_only(console: Served) -> None:
    browser = Browser(console.app)
    for bad in (
        "https://evil.test",
        "evil",
        "/\\evil.test",
        "/../../evil",
        "/%2e%2E/evil",
        "/.%2e",
        "/a\nb",
        "javascript:1",
    ):
        page = await browser.get("/login", back=bad)
        assert page.status == 400
    page = await browser.get("/login", back="//evil.test")
    answered = await browser.http.post(
        page.form("/login").action, data={"credential": KEYS["ann"]}, follow_redirects=False
    )
    assert answered.headers["location"] == "/console//evil.test"


async def test_a_form_of_another_login_or_origin_changes_nothing(
    console: Served, log_in: LogIn
) -> None:
    ann, bob = await log_in("ann"), await log_in("bob")
    form = (await ann.get()).form("/logout")
    assert (await bob.send(form)).status == 403
    assert (await ann.send(form, form_token="")).status == 403
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.test"}):
        answered = await ann.http.post(form.action, data=form.fields, headers=headers)
        assert answered.status_code == 403
    assert "Log in" not in (await ann.get()).text
    assert "Log in" in (await ann.send(form)).text
    assert not ann.http.cookies


async def test_a_cookie_is_for_pages_and_not_for_the_api(console: Served, log_in: LogIn) -> None:
    ann = await log_in("ann")
    assert (await ann.http.get("/v1/queues")).status_code == 401
    cookie = f"{next(iter(ann.http.cookies.jar)).name}={next(iter(ann.http.cookies.jar)).value}"
    async with stranger(console.app, cookie=cookie) as http:
        assert (await http.get("/v1/queues")).status_code == 401


async def test_every_page_has_the_policy_and_no_page_is_kept(
    console: Served, log_in: LogIn
) -> None:
    ann = await log_in("ann")
    for path in ("", "/inbox", "/login", "/pause?pause=x"):
        answered = await ann.http.get(f"/console{path}")
        policy = answered.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answered.headers["cache-control"] == "no-store"
        assert "<script>" not in answered.text
        assert " style=" not in answered.text


async def test_the_scripts_of_others_are_those_that_were_published(console: Served) -> None:
    async with stranger(console.app) as http:
        for name, sum_of in PINNED.items():
            answered = await http.get(f"/console/static/{name}")
            assert answered.headers["content-type"].startswith("text/javascript")
            assert digest(name) == sum_of


async def test_a_credential_in_the_url_is_for_development_only(
    console: Served, store: RedisStateStore
) -> None:
    browser = Browser(console.app)
    assert "Log in" in (await browser.follow(f"/?token={KEYS['ann']}")).text
    key, kept = make_api_key("dev", ["admin:*"])
    app = create_gateway(
        store, auth=ApiKeys([kept]), console=ConsoleOptions(secret=SECRET, login_by_url=True)
    )
    browser = Browser(app)
    page = await browser.follow(f"/?token={key}")
    # A page that leads here is of another site.
    (cookie,) = browser.http.cookies.jar
    assert cookie.get_nonstandard_attr("SameSite") == "lax"
    assert page.url == "https://console.test/console/"
    assert "dev" in page.text
    assert key not in page.source
    await app.aclose()


async def test_who_needs_no_credential_needs_no_login(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=Loopback(), console=True)
    browser = Browser(app, base="http://127.0.0.1:8787")
    assert "loopback" in (await browser.get()).text
    await app.aclose()


async def test_without_being_asked_for_there_is_no_console(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens)
    async with stranger(app) as http:
        assert (await http.get("/console")).status_code == 404
    with pytest.raises(InvalidField, match="session"):
        ConsoleOptions(session=timedelta(days=2))


def test_an_empty_secret_is_none_of_a_console() -> None:
    with pytest.raises(ConfigError):
        Logins(tokens, ConsoleOptions(secret=""))
