"""docker-compose.yml describes a pool that scales and a server that keeps what it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"

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
    assert options["--lazyfree-lazy-expire"] == "yes"
    assert any(volume.endswith(":/data") for volume in services["redis"]["volumes"])


def test_server_has_a_health_check_that_the_others_wait_for(
    services: dict[str, dict[str, Any]],
) -> None:
    assert services["redis"]["healthcheck"]["test"]
    for name in ("worker", "demo"):
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
        assert services[name]["environment"]["REDIS_STATE_URL"].startswith("redis://redis:")


def test_worker_can_be_scaled_and_is_restarted(services: dict[str, dict[str, Any]]) -> None:
    worker = services["worker"]
    assert "container_name" not in worker
    assert "ports" not in worker
    assert worker["restart"] == "unless-stopped"
    assert worker["stop_grace_period"]


def test_worker_command_names_a_class_that_is_there(services: dict[str, dict[str, Any]]) -> None:
    program, path = services["worker"]["command"]
    module, _, settings = path.rpartition(".")
    assert program == "arq"
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    assert file.is_file()
    assert settings in file.read_text(encoding="utf-8")


def test_demo_starts_only_when_asked_for(services: dict[str, dict[str, Any]]) -> None:
    assert services["demo"]["profiles"] == ["demo"]
    assert "profiles" not in services["redis"]
    assert "profiles" not in services["worker"]


def test_image_runs_without_root_and_copies_the_pool_only() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    assert "COPY workers workers" in lines
    assert not any(line.startswith("COPY") and "tests" in line for line in lines)
