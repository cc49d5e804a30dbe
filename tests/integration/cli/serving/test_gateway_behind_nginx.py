"""`redis-state gateway` behind nginx, which speaks TLS and serves it below a path."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from tests.support.browser.console import Browser
from tests.support.commands import begin, cli, end
from tests.support.http.gateway import SECRET, links
from tests.support.servers.proxies.nginx import nginx

ROOT = "/agents"


def _update(session_id: str, n: int) -> StateUpdate:
    return StateUpdate(
        session_id=session_id, task_id="t", update_type=UpdateType.PROGRESS, content={"n": n}
    )


@pytest.mark.parametrize("cuts_path", [True, False], ids=["cut", "whole"])
async def test_the_console_streams_and_links_work_below_a_path_whether_it_is_cut_off_or_not(
    store: RedisStateStore,
    settings: Settings,
    tmp_path: Path,
    unused_tcp_port: int,
    cuts_path: bool,  # noqa: FBT001
) -> None:
    # Where nginx cuts the path off, it decodes %2F before: an id's slash would be one of the path.
    of = "s-1" if cuts_path else "s/1"
    keys, secret = tmp_path / "keys.json", tmp_path / "secret"
    made = await cli(settings, "gateway", "key", "ann", "admin:*", "--file", str(keys))
    key = made.out.strip()
    secret.write_text(SECRET)
    link = links.mint(f"s:{'0' * 40}", actor="bob")
    arguments = ["--port", str(unused_tcp_port), "--keys", str(keys), "--root-path", f"{ROOT}/"]
    arguments += ["--hook-secret-file", str(secret), "--console"]
    process = await begin(settings, "gateway", *arguments)
    with nginx(tmp_path, unused_tcp_port, path=ROOT, cuts_path=cuts_path) as (base, cert):
        browser = Browser(None, base=base, mount=ROOT, over_socket=True)
        await browser.http.aclose()
        trusted = ssl.create_default_context(cafile=str(cert))
        browser.http = httpx.AsyncClient(
            base_url=base, verify=trusted, follow_redirects=True, timeout=30
        )
        async with browser.http as http:

            async def serves() -> bool:
                return (await http.get(f"{ROOT}/readyz")).status_code == 200

            await eventually(serves, "the gateway serves", timeout_s=60)
            await store.save_update(_update(of, 1))
            page = await browser.log_in(key)
            assert "Overview" in page.text
            assert [each.path for each in http.cookies.jar] == [f"{ROOT}/console"]
            assert all(each.secure for each in http.cookies.jar)
            links_here = [each for each in page.links() if not each.startswith("#")]
            assert len(links_here) > 5
            for each in links_here:
                assert each.startswith(f"{ROOT}/")
                assert (await browser.follow(each)).status == 200, each
            for tag, named in page.elements:
                if tag in ("script", "link") and named.get("src", named.get("href", "")):
                    found = await http.get(named.get("src") or named["href"])
                    assert found.status_code == 200, named

            headers = {"authorization": f"Bearer {key}"}
            session = f"{ROOT}/v1/sessions/{quote(of, safe='')}/events"
            async with http.stream("GET", session, headers=headers) as stream, asyncio.timeout(60):
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                seen = 1
                async for line in lines:
                    if line.startswith("data:") and f'"n":{seen}' in line.replace(" ", ""):
                        # The next row is written once this one has come through.
                        seen += 1
                        if seen > 3:
                            break
                        await store.save_update(_update(of, seen))
            assert (await http.get(f"{ROOT}/v1/hooks/{link}")).status_code == 404
            assert (await http.get("/v1/queues", headers=headers)).status_code in (403, 404)
            assert (await http.get(f"{ROOT}/v1/queues", headers=headers)).status_code == 200
    process.send_signal(signal.SIGTERM)
    ran = await end(process)
    assert f"{ROOT}/v1/hooks/-" in ran.out + ran.err
    assert link not in ran.out + ran.err


@pytest.mark.parametrize(
    "root_path",
    ["agents", "/a/../b", "//evil.example.com", "/a?b", "/a\nb", "/v1", "/console/x", "/metrics"],
)
async def test_a_root_path_that_is_none_is_refused(settings: Settings, root_path: str) -> None:
    ran = await cli(settings, "gateway", "--root-path", root_path)
    assert (ran.status, "root path" in ran.err) == (2, True), ran.err
