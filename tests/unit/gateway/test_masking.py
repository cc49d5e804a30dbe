"""Tokens in the paths and queries that a server logs."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("jwt", reason="needs the gateway extra")

from redis_state.gateway.auth.hook_links import HookLinks
from redis_state.gateway.requests.masking import masked_scope

LINK = HookLinks("s" * 32).mint(f"s:{'0' * 40}", actor="bob")
KEY = "rsk_0a1b2c3d4e5f_Zm9vYmFyYmF6cXV4"
PAUSE = "some session.AbCdEfGhIjKlMnOpQrStUvWxYz012345"

PLACES = [
    "/v1/hooks/{}",
    "/agents/v1/agents/v1/hooks/{}",
    "/v1/agents/v1/hooks/{}",
    "/V1/Hooks/{}",
    "//v1//hooks//{}",
    "/v1/./hooks/{}/x",
    "/v1/hooks%2F{}",
    "/%76%31/%68ooks/{}",
    "/v1/hook/{}",
    "/v1%20/hooks;{}",
    "/hooks/{}",
    "/{}",
    "/a/{}/b",
    "/x%ff{}",
    "/" + "x" * 9_000 + "/{}",
    "/v1/sessions?after={}",
    "/v1/sessions?next=https%3A%2F%2Fa.example%2Fv1%2Fhooks%2F{}",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["plain", "encoded", "encoded twice", "dots encoded"])
@pytest.mark.parametrize("token", [LINK, KEY, PAUSE], ids=["link", "key", "pause"])
def test_no_token_of_any_path_or_query_is_logged(place: str, form: str, token: str) -> None:
    logged = scope_of(place.format(in_form(form, token)))
    served = masked_scope(logged)
    secret = token.rpartition(".")[2][-20:]
    assert secret not in written(logged)
    assert secret in written(served)
    logged["query_string"].decode("ascii")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/sessions/some%20session/tasks/t.1.2/timeline?limit=3&after=41-1795398718523-1f852a4c",
        "/agents/v1/queues?x=%ff",
        "/console/session?session=a%2Fb",
        "/v1/hooks",
        "/v1/sessions/v1/hooks/x",
    ],
)
def test_what_has_no_token_is_logged_and_served_as_it_is(target: str) -> None:
    logged = scope_of(target)
    assert masked_scope(logged) is logged
    assert logged == scope_of(target)


@pytest.mark.parametrize("prefix", ["/v1/hooks/", "/V1//Hooks;", "/a/v1/a/v1/%68ook/"])
def test_the_rest_of_a_link_is_not_logged(prefix: str) -> None:
    logged = scope_of(prefix + LINK[5:])
    masked_scope(logged)
    assert LINK[-20:] not in written(logged)


@pytest.mark.parametrize("more", ["_", "-", "x", "0)", "%5F"])
def test_a_token_is_masked_with_what_stands_behind_it(more: str) -> None:
    for place in ("/hooks/{}", "/api/{}/y", "/v1/sessions?after={}"):
        logged = scope_of(place.format(PAUSE) + more)
        masked_scope(logged)
        assert PAUSE[-20:] not in written(logged), place


@pytest.mark.parametrize(
    "target",
    [
        "/console/login?next=/cb?token=opaque",
        "/console/login?next=%2Fcb%3Fa%3D1%26access_token%3Dopaque%26b%3D2",
        "/v1/tasks%3Fapi_key=opaque",
        "/x?next=%252Fcb%253Fsecret%253Dopaque",
    ],
)
def test_a_parameter_of_an_address_in_another_is_masked(target: str) -> None:
    logged = scope_of(target)
    served = masked_scope(logged)
    assert "opaque" not in written(logged)
    assert "opaque" in written(served)


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "access_token",
        "resume_token",
        "Api-Key",
        "%74oken",
        "sig",
        "code",
        "Auth",
        "authorization",
        "pwd",
        "pass",
        "jwt",
        "credential",
        "client_assertion",
    ],
)
def test_a_parameter_that_is_named_as_a_secret_is_masked(name: str) -> None:
    logged = scope_of(f"/console/login?a=1&{name}=opaque%26secret&b=2")
    masked_scope(logged)
    assert "opaque" not in written(logged)
    assert "secret" not in written(logged)
    assert logged["query_string"].endswith(b"&b=2")


def test_a_path_of_many_layers_is_masked_unread() -> None:
    began = time.process_time()
    logged = scope_of("/" + "%" + "25" * 30_000)
    masked_scope(logged)
    hostile = scope_of("/v1/" + "v1/" * 10_000 + "?" + "?&" * 15_000 + "eyJ" * 10_000)
    masked_scope(hostile)
    for text in ("?" * 60_000, "?token" * 10_000, "?a=" * 20_000, ".aB" * 20_000, "=" * 60_000):
        masked_scope(scope_of("/v1/x?" + text))
    assert time.process_time() - began < 1
    assert logged["path"] == "/-"


def in_form(form: str, text: str) -> str:
    match form:
        case "plain":
            return text
        case "dots encoded":
            return text.replace(".", "%2E")
        case _:
            percent = "%" if form == "encoded" else "%25"
            return "".join(f"{percent}{ord(each):02x}" for each in text)


def scope_of(target: str) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "path": unquote(path, errors="replace"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
    }


def written(scope: Any) -> str:
    text = f"{scope['path']} {scope['raw_path'].decode()} {scope['query_string'].decode()}"
    for _ in range(4):
        text += unquote(text.rpartition("\n")[2], errors="replace").join(("\n", ""))
    return text
