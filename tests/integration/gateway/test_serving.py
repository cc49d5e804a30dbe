"""The application: mounted, by itself, from pages of other sites, without its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("fastapi", reason="needs fastapi")

from fastapi import FastAPI
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError, InvalidField
from redis_state.gateway import AnyOf, GatewayLimits, Loopback, create_gateway
from redis_state.gateway.requests.root_path import AtRootPath
from redis_state.gateway.runtime import PerLoop
from tests.support.http.gateway import Served, at, caller, links, paused, stranger, tokens


async def test_mounted_in_fastapi_it_works_without_its_lifespan(served: Served) -> None:
    lived: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        lived.append("begin")
        yield
        lived.append("end")

    app = FastAPI(lifespan=lifespan)
    gateway = create_gateway(served.store, auth=tokens, hooks=links)
    app.mount("/agents", gateway)

    @app.get("/own")
    async def own() -> dict[str, str]:
        return {"of": "the application"}

    for odd in ("a/b", "..", "é", "agents"):
        await served.client.submit("ask", session_id=odd, task_id="t/1")
        async with caller(app, "ann", "admin:*") as http:
            assert (await http.get(f"/agents{at(odd, 't/1')}")).json()["session_id"] == odd
            assert (await http.get("/own")).json() == {"of": "the application"}
            assert (await http.get(at(odd, "t/1"))).status_code == 404
    link = links.mint(await paused(served, "a/b", "t/1"), actor="bob")
    seen: list[str] = []

    async def logging_app(scope: Any, receive: Any, send: Any) -> None:
        async def logged(message: Any) -> None:
            seen.append(scope["path"])
            await send(message)

        await app(scope, receive, logged)

    async with stranger(logging_app) as http:
        assert (await http.get(f"/agents/v1/hooks/{link}")).status_code == 200
    assert set(seen) == {"/agents/v1/hooks/-"}
    await gateway.aclose()
    assert not lived


@pytest.mark.parametrize(
    "before", ["/v1/hooks/", "//v1/hooks/", "/v1//hooks/", "/agents/v1/hooks/", "/%761/hooks//"]
)
async def test_a_link_stands_in_no_log_even_if_it_leads_nowhere(
    served: Served, before: str
) -> None:
    app = create_gateway(served.store, auth=tokens, hooks=links)
    link, seen = links.mint(f"s:{'0' * 40}", actor="bob"), set[str]()

    async def logging_app(scope: Any, receive: Any, send: Any) -> None:
        async def logged(message: Any) -> None:
            seen.add(f"{scope['path']} {scope['raw_path']}")
            await send(message)

        await app(scope, receive, logged)

    async with stranger(logging_app) as http:
        # A path of two slashes is one of a host, unless its own comes before.
        whole = f"{str(http.base_url).rstrip('/')}{before}{link}"
        assert (await http.get(whole)).status_code == 404
    assert seen
    assert not any(link in each for each in seen)
    await app.aclose()


async def test_a_session_or_a_stream_of_the_name_of_links_keeps_its_path(served: Served) -> None:
    app = create_gateway(served.store, auth=tokens, hooks=links)
    seen = list[str]()

    async def logging_app(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        seen.append(scope["path"])

    paths = ["/v1/sessions/v1/hooks/x", "/v1/stream/v1/hooks/x"]
    async with caller(logging_app, "ann", "admin:*") as http:
        for path in paths:
            await http.get(path)
    assert seen == paths
    await app.aclose()


async def test_served_by_itself_its_lifespan_opens_and_closes_it(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens)
    async with app.router.lifespan_context(app):
        opened = await app.services()
        assert await app.services() is opened
    again = await app.services()
    assert again is not opened
    await app.aclose()
    await app.aclose()


async def test_what_cannot_be_opened_is_told_to_each_and_tried_again() -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def opens() -> AsyncGenerator[int]:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        yield 5

    kept = PerLoop(opens)
    with pytest.raises(RuntimeError, match="not yet"):
        await kept.get()
    assert await kept.get() == 5
    await kept.aclose()


def test_one_application_serves_loop_after_loop(settings: Settings) -> None:
    app = create_gateway(RedisStateStore(settings), auth=tokens)
    for _ in range(2):

        async def ask() -> int:
            async with caller(app, "ann", "read:*") as http:
                status = (await http.get("/v1/queues")).status_code
            await app.aclose()
            return status

        assert asyncio.run(ask()) == 200


async def test_pages_of_other_origins_change_nothing(served: Served) -> None:
    body = {"handler": "echo", "session_id": "s"}
    refused = [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example.com"},
        {"origin": "null"},
        {"origin": "https://evil.example.com", "sec-fetch-site": "cross-site"},
    ]
    allowed: list[dict[str, str]] = [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://gateway.test"},
        {"origin": "http://gateway.test"},
        {"sec-fetch-site": "none"},
    ]
    async with served.caller("ann", "admin:*") as http:
        for headers in refused:
            answer = await http.post("/v1/tasks", json=body, headers=headers)
            assert answer.status_code == 403, headers
            assert "access-control-allow-origin" not in answer.headers
            assert (await http.get("/v1/tasks", headers=headers)).json()["tasks"] == []
        for headers in allowed:
            assert (await http.post("/v1/tasks", json=body, headers=headers)).status_code == 201


async def test_an_allowed_origin_may_call_and_no_other(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens, cors=["https://app.example.com"])
    async with caller(app, "ann", "admin:*") as http:
        for origin, allowed in [("https://app.example.com", True), ("https://x.example", False)]:
            asked = {"origin": origin, "access-control-request-method": "POST"}
            preflight = await http.options("/v1/tasks", headers=asked)
            assert (preflight.headers.get("access-control-allow-origin") == origin) is allowed
            assert "access-control-allow-credentials" not in preflight.headers
            headers = {"origin": origin, "sec-fetch-site": "cross-site"}
            body = {"handler": "echo", "session_id": "s"}
            sent = await http.post("/v1/tasks", json=body, headers=headers)
            assert (sent.status_code == 201) is allowed
    await app.aclose()
    for wrong in ("*", "app.example.com", "https://app.example.com/", "ftp://x"):
        with pytest.raises(ConfigError, match="cors"):
            create_gateway(store, auth=tokens, cors=[wrong])


async def test_a_host_that_is_not_served_is_refused(store: RedisStateStore) -> None:
    # A page under a name of its own needs no credentials either where they are another way.
    for auth in (Loopback(), AnyOf(tokens, Loopback())):
        await _is_of_this_machine(store, auth)


async def _is_of_this_machine(store: RedisStateStore, auth: Any) -> None:
    app = create_gateway(store, auth=auth)
    for base, status in [
        ("http://localhost:8787", 200),
        ("http://[::1]:8787", 200),
        ("http://rebound.example.com", 421),
        ("http://rebound.example.com:8787", 421),
    ]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=base) as http:
            assert (await http.get("/v1/queues")).status_code == status
    await app.aclose()


async def test_a_host_may_be_named_with_its_port(store: RedisStateStore) -> None:
    app = create_gateway(store, auth=tokens, hosts=["Agents.example.com:8443"])
    for name, status in (("agents.example.com:8443", 200), ("agents.example.org", 421)):
        async with caller(app, "ann", "read:*", base=f"https://{name}") as http:
            assert (await http.get("/v1/queues")).status_code == status
    await app.aclose()


async def test_a_probe_is_answered_under_any_host_and_nothing_else_is(
    store: RedisStateStore,
) -> None:
    app = create_gateway(store, auth=tokens, hosts=["agents.example.com"])
    probes = ("/healthz", "/readyz")
    below = AtRootPath(app, "/agents")
    for served, root in ((app, ""), (below, ""), (below, "/agents")):
        # As a kubelet names a pod.
        async with caller(served, "ann", "admin:*", base="http://10.1.2.3:8787") as http:
            for path in probes:
                assert (await http.get(root + path)).json() == {"status": "ok"}
                assert (await http.post(root + path)).status_code == 421
            for path in ("/", "/metrics", "/v1/openapi.json", "/v1/healthz", "/healthz/x"):
                assert (await http.get(root + path)).status_code == 421, path
    await app.aclose()


async def test_unknown_paths_and_methods_have_the_shape_of_errors(served: Served) -> None:
    async with served.caller("ann", "admin:*") as http:
        for path in (
            "/",
            "/v1",
            "/v1/tasks/",
            "/v2/tasks",
            "/v1/sessions/%FF",
            "/v1/" + "x" * 9000,
        ):
            missing = await http.get(path)
            assert (missing.status_code, set(missing.json())) == (404, {"error"}), path
        wrong = await http.put("/v1/tasks")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        twice = await http.get("/v1/tasks?handler=a&handler=b")
        assert (twice.status_code, twice.json()["error"]["field"]) == (422, "handler")
        key = {"idempotency-key": "x" * 201}
        long = await http.post("/v1/tasks", json={"handler": "a", "session_id": "s"}, headers=key)
        assert (long.status_code, long.json()["error"]["field"]) == (422, "Idempotency-Key")
        head = await http.head("/v1/tasks")
        assert head.status_code == 200


async def test_metrics_count_answers_by_operation_and_name_no_id(served: Served) -> None:
    pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    async with served.caller("ann", "admin:*") as http:
        await http.get(at("a-secret-id", "t"))
        found = await http.get("/metrics")
        assert found.headers["content-type"].startswith("text/plain")
        wanted = 'redis_state_gateway_answers_total{operation="read_task",status="404"} 1.0'
        assert wanted in found.text
        assert "redis_state_gateway_streams 0.0" in found.text
        assert "a-secret-id" not in found.text


async def test_an_unreachable_server_is_503_and_names_no_address(unused_tcp_port: int) -> None:
    settings = Settings(url=SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0"), call_timeout_s=0.3)
    async with RedisStateStore(settings) as store:
        app = create_gateway(store, auth=tokens)
        async with caller(app, "ann", "admin:*") as http:
            for path in ("/readyz", at("s", "t"), "/v1/queues"):
                answer = await http.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), path
                assert str(unused_tcp_port) not in answer.text
            assert (await http.get("/healthz")).status_code == 200
        await app.aclose()


async def test_a_defect_is_500_without_its_text(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(**_: Any) -> Any:
        raise ZeroDivisionError("a pay" + "load")

    services = await served.app.services()
    monkeypatch.setattr(services.client, "list_dead", breaks)
    async with served.caller("ann", "admin:*") as http:
        answer = await http.get("/v1/tasks/dead")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "a payload" not in caplog.text + answer.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"max_body_bytes": 0}, {"burst": 0}, {"streams": "x"}, {"requests_per_s": 0}]
)
def test_limits_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidField, match=next(iter(wrong))):
        GatewayLimits(**wrong)
