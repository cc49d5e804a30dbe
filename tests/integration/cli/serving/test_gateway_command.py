"""The command that serves the gateway: whom it lets in, and what it writes."""

from __future__ import annotations

import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

from redis_state import Settings
from redis_state.cli.servers.gateway import _add, make_server
from redis_state.errors import ConfigError
from redis_state.gateway import make_api_key
from redis_state.testing import eventually
from tests.support.commands import begin, cli, end
from tests.support.http.gateway import SECRET, links, tokens
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess

# Of a gateway that starts on a busy machine.
_START_S = 90
COMPOSE = Path(__file__).parents[4] / "docker-compose.yml"


async def until_it_serves(process: ForkedProcess, http: httpx.AsyncClient, path: str) -> None:
    """Wait until a gateway answers. Errors: if it ends instead, what it complained of."""

    async def serves() -> bool:
        if process.returncode is not None:
            ran = await end(process)
            raise AssertionError(f"the gateway ended with {ran.status}: {ran.err}")
        try:
            return (await http.get(path)).status_code == 200
        except httpx.HTTPError:
            return False

    await eventually(serves, "the gateway serves", timeout_s=_START_S)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--host", "0.0.0.0"], "is not loopback"),
        (["--keys", "/nothing"], "cannot be read"),
        (["--jwks-url", "https://id.example.com/jwks"], "audience"),
        (["--browser-secret-file", "/nothing"], "cannot be read"),
        (["--cors", "*"], "cors"),
        (["--requests-per-s", "0.0001"], "requests_per_s"),
    ],
)
async def test_what_would_let_everybody_in_or_cannot_be_is_refused(
    settings: Settings, arguments: list[str], problem: str
) -> None:
    ran = await cli(settings, "gateway", *arguments)
    assert (ran.status, problem in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("text", ["short", "{", '{"a": 1}', "{}"])
async def test_a_secret_that_cannot_be_used_is_refused_without_its_text(
    settings: Settings, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    ran = await cli(settings, "gateway", "--hook-secret-file", str(file))
    assert ran.status == 2
    assert text not in ran.err or text == "{}"


async def test_keys_are_added_to_a_file_and_printed_once(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    for subject in ("ann", "bob"):
        ran = await cli(
            settings, "gateway", "key", subject, "read:*", "--file", str(file), "--days", "1"
        )
        assert ran.out.startswith("rsk_")
        assert ran.out.strip() not in file.read_text()
    assert [each["subject"] for each in json.loads(file.read_text())] == ["ann", "bob"]
    assert file.stat().st_mode & 0o077 == 0
    printed = await cli(settings, "gateway", "key", "cid", "admin:*")
    assert json.loads(printed.out.splitlines()[1])["subject"] == "cid"
    wrong = await cli(settings, "gateway", "key", "cid", "everything")
    assert (wrong.status, "scopes" in wrong.err) == (2, True)


def test_keys_that_are_made_at_once_are_all_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    makers = ThreadPoolExecutor(8)
    subjects = [f"s{number}" for number in range(40)]
    documents = [make_api_key(each, ["read:*"])[1].document() for each in subjects]
    with makers:
        list(makers.map(partial(_add, file), documents))
    found = json.loads(file.read_text())
    assert sorted(each["subject"] for each in found) == sorted(subjects)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    file.write_text("{")
    with pytest.raises(ConfigError):
        _add(file, documents[0])
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert file.read_text() == "{"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--file", "/nonexistent/keys.json"), "/nonexistent/keys.json cannot be written: No such"),
        (("--days", "nan"), "--days"),
        (("--days", "1e12"), "--days"),
    ],
)
async def test_a_key_that_cannot_be_made_is_one_line(
    settings: Settings, arguments: tuple[str, ...], said: str
) -> None:
    ran = await cli(settings, "gateway", "key", "ann", "admin:*", *arguments)
    assert (ran.status, ran.out, said in ran.err) == (2, "", True), ran.err


def test_a_second_sigint_ends_it_at_once_and_is_raised_again_once() -> None:
    application: Any = SimpleNamespace(max_message_bytes=1)
    server, heard = make_server(application), list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with server.capture_signals():
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
        # It takes note of uvicorn's end, and ends the streams of all later servers of the process.
        events = sys.modules.get("sse_starlette.sse")
        if events is not None:
            events.AppStatus.should_exit = False
    assert (server.force_exit, heard) == (True, [signal.SIGINT])


async def test_a_file_of_a_secret_that_is_no_text_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"\xff" * 40)
    ran = await cli(settings, "gateway", "--hook-secret-file", str(tmp_path / "secret"))
    assert (ran.status, "UTF-8" in ran.err) == (2, True)


async def test_it_serves_with_keys_until_sigterm_and_logs_no_credential(
    settings: Settings, tmp_path: Path, unused_tcp_port: int
) -> None:
    keys, secret = tmp_path / "keys.json", tmp_path / "secret.json"
    made = await cli(settings, "gateway", "key", "ann", "admin:*", "--file", str(keys))
    secret.write_text(json.dumps({"1": SECRET}))
    arguments = ["--port", str(unused_tcp_port), "--keys", str(keys)]
    for name in ("browser", "hook"):
        arguments += [f"--{name}-secret-file", str(secret)]
    process = await begin(settings, "gateway", *arguments)
    base = f"http://127.0.0.1:{unused_tcp_port}"
    link, token = links.mint(f"s:{'0' * 40}", actor="bob"), tokens.mint("bob", ["read:*"])
    key = made.out.strip()
    async with httpx.AsyncClient(base_url=base) as http:
        await until_it_serves(process, http, "/readyz")
        for credential in (key, token):
            headers = {"authorization": f"Bearer {credential}"}
            assert (await http.get("/v1/queues", headers=headers)).status_code == 200
        assert (await http.get("/v1/queues")).status_code == 401
        odd = await http.get("/v1/sessions/a%2Fb/tasks/%2E%2E", headers={"authorization": key})
        assert odd.status_code == 401
        assert (await http.get(f"/v1/hooks/{link}")).status_code == 404
        # Nor is a link logged that stands in a path which is none.
        for more in ("%ff", "x" * 9_000):
            assert (await http.get(f"/v1/hooks/{link}{more}")).status_code in (400, 404)
        headers = {"authorization": f"Bearer {key}"}
        async with http.stream("GET", "/v1/sessions/s/events", headers=headers) as stream:
            assert stream.status_code == 200
            process.send_signal(signal.SIGTERM)
            # The stream ends at once, and not after the server's patience.
            assert "retry:" in "".join([text async for text in stream.aiter_text()])
    ran = await end(process)
    assert ran.status in (0, -signal.SIGTERM)
    logged = ran.out + ran.err
    assert "/v1/hooks/-" in logged
    assert re.search(r"[0-9]+ files may be open: some [0-9]+ clients at once", logged)
    for secret_text in (link, token, key, SECRET):
        assert secret_text not in logged


async def test_without_auth_it_serves_this_machine_under_its_own_names(
    settings: Settings, unused_tcp_port: int
) -> None:
    process = await begin(settings, "gateway", "--port", str(unused_tcp_port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http:
        await until_it_serves(process, http, "/healthz")
        assert (await http.get("/v1/queues")).status_code == 200
        rebound = await http.get("/v1/queues", headers={"host": "evil.example.com"})
        assert rebound.status_code == 421
    process.send_signal(signal.SIGTERM)
    await end(process)


async def test_its_options_say_what_a_caller_may_use(
    settings: Settings, unused_tcp_port: int
) -> None:
    given = ["--streams", "65", "--requests-per-s", "0", "--burst", "1", "--kept-streams", "1"]
    given += ["--max-append-bytes", "10", "--port", str(unused_tcp_port)]
    process = await begin(settings, "gateway", *given)
    events, text = "/v1/sessions/s/events", {"content-type": "text/plain"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http:
        await until_it_serves(process, http, "/readyz")
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(http.stream("GET", events)) for _ in range(66)
            ]
            assert [each.status_code for each in opened] == [200] * 65 + [429]
        assert (await http.put("/v1/stream/a", content="x" * 11, headers=text)).status_code == 413
        assert (await http.put("/v1/stream/a", headers=text)).status_code == 201
        assert (await http.put("/v1/stream/b", headers=text)).status_code == 403
    process.send_signal(signal.SIGTERM)
    await end(process)


async def test_the_command_of_the_compose_file_serves_the_console(
    settings: Settings, tmp_path: Path, unused_tcp_port: int
) -> None:
    if not COMPOSE.is_file():
        pytest.skip("there is no docker-compose.yml here")
    service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["gateway"]
    keys = tmp_path / "keys.json"
    made = await cli(settings, "gateway", "key", "me", "admin:*", "--file", str(keys))
    command = [str(keys) if word == "/keys/keys.json" else word for word in service["command"][1:]]
    _, python, code, program = service["healthcheck"]["test"]
    assert (python, code) == ("python", "-c")
    probe = [sys.executable, "-c", program.replace("8787", str(unused_tcp_port))]
    assert children.run(probe, capture_output=True).returncode != 0
    process = await begin(settings, *command, "--port", str(unused_tcp_port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http:
        await until_it_serves(process, http, "/readyz")
        assert children.run(probe).returncode == 0
        assert (await http.get("/console")).status_code in (303, 307)
        headers = {"authorization": f"Bearer {made.out.strip()}"}
        assert (await http.get("/v1/queues", headers=headers)).status_code == 200
        assert (await http.get("/v1/queues")).status_code == 401
    process.send_signal(signal.SIGTERM)
    await end(process)
