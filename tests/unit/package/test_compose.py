"""docker-compose.yml describes a pool that scales and a server that keeps what it was given."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"

pytestmark = pytest.mark.skipif(not COMPOSE.is_file(), reason="there is no docker-compose.yml here")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = content["services"]
    return found


def test_server_keeps_every_write_and_evicts_nothing(services: dict[str, dict[str, Any]]) -> None:
    command: list[str] = services["redis"]["command"]
    options = dict(zip(command[::2], command[1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    # Without it nothing is refused: the kernel kills the server.
    assert options["--maxmemory"] == "1gb"
    assert options["--lazyfree-lazy-expire"] == "yes"
    assert any(volume.endswith(":/data") for volume in services["redis"]["volumes"])


def test_server_has_a_health_check_that_the_others_wait_for(
    services: dict[str, dict[str, Any]],
) -> None:
    assert services["redis"]["healthcheck"]["test"]
    for name in ("worker", "demo", "gateway"):
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
        assert services[name]["environment"]["REDIS_STATE_URL"].startswith("redis://redis:")


def test_worker_can_be_scaled_and_is_restarted(services: dict[str, dict[str, Any]]) -> None:
    worker = services["worker"]
    assert "container_name" not in worker
    # A port of the machine that is named could serve one worker only.
    assert worker["ports"] == ["127.0.0.1::9100"]
    assert worker["restart"] == "unless-stopped"
    assert worker["stop_grace_period"]


def test_worker_command_names_a_worker_that_is_there(services: dict[str, dict[str, Any]]) -> None:
    command = services["worker"]["command"]
    assert f"CMD {json.dumps(command)}" in DOCKERFILE.read_text(encoding="utf-8")
    assert command[:2] == ["redis-state", "worker"]
    module, _, name = command[2].partition(":")
    pytest.importorskip("arq", reason="needs the worker extra")
    agent_worker = import_module("redis_state.worker").AgentWorker
    assert isinstance(getattr(import_module(module), name), agent_worker)


def test_image_and_worker_have_the_same_health_check(services: dict[str, dict[str, Any]]) -> None:
    check = services["worker"]["healthcheck"]
    assert check["test"] == ["CMD", "redis-state", "workers", "--here"]
    (line,) = [
        line
        for line in DOCKERFILE.read_text(encoding="utf-8").splitlines()
        if line.startswith("HEALTHCHECK")
    ]
    for name in ("interval", "timeout", "start_period"):
        assert f"--{name.replace('_', '-')}={check[name]}" in line
    assert line.endswith(f"CMD {json.dumps(check['test'][1:])}")
    assert services["demo"]["healthcheck"] == {"disable": True}


def test_only_this_machine_reaches_the_published_ports(services: dict[str, dict[str, Any]]) -> None:
    assert services["redis"]["ports"] == ["127.0.0.1:6379:6379"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_image_has_the_extras_of_production_and_serves_metrics() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    (extras,) = re.findall(r"pip install '\.\[([a-z,]+)\]' -c requirements/dev\.txt", text)
    assert set(extras.split(",")) == {
        *("worker", "gateway", "forms", "cli", "http", "crypto", "otel", "prometheus", "uvloop"),
        *("postgres", "parquet"),
    }
    assert "ENV WORKER_METRICS=0.0.0.0:9100" in text
    assert "EXPOSE 9100" in text


def test_gateway_asks_for_keys_and_keeps_them(services: dict[str, dict[str, Any]]) -> None:
    command, volumes = services["gateway"]["command"], services["gateway"]["volumes"]
    keys = Path(command[command.index("--keys") + 1])
    assert [volume.split(":")[1] for volume in volumes] == [str(keys.parent)]
    text = COMPOSE.read_text(encoding="utf-8")
    assert f'redis-state gateway key me "admin:*" --file {keys}' in text
    folder = rf"install -d -o agent -g agent -m 0700 {keys.parent}\b"
    assert re.search(folder, DOCKERFILE.read_text(encoding="utf-8"))


def test_demo_and_gateway_start_only_when_asked_for(services: dict[str, dict[str, Any]]) -> None:
    assert services["demo"]["profiles"] == ["demo"]
    assert services["gateway"]["profiles"] == ["gateway"]
    assert "profiles" not in services["redis"]
    assert "profiles" not in services["worker"]


def test_image_runs_without_root_and_copies_the_pool_only() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    assert "COPY workers workers" in lines
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = {part for line in lines if line.startswith("COPY ") for part in line.split()[1:-1]}
    assert {f"!{part}" for part in copied} <= set(ignored)
    assert not any(line.startswith("COPY") and "tests" in line for line in lines)
