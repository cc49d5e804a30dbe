"""Every script on a server in cluster mode, which refuses keys of two slots."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from redis_state import Settings
from redis_state.errors import BackendError, CommandRefused
from redis_state.scripts import Reply, Scripts
from redis_state.testing import eventually
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support.processes import children
from tests.support.script_calls import CALLS
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import ask
from tests.support.servers.choice import on_path, wheel_binary
from tests.support.servers.ports import free_port


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    wanted = None if os.environ.get("REDIS_STATE_TEST_SERVER") == "embedded" else on_path()
    binary = os.environ.get("REDIS_STATE_SERVER_BIN") or wanted or str(wheel_binary())
    port = free_port()
    options = {"port": str(port), "bind": "127.0.0.1", "cluster-enabled": "yes", "save": ""}
    options |= {"cluster-config-file": "nodes.conf", "dir": str(folder)}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    with children.popen([binary, *arguments], stdout=subprocess.DEVNULL):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
async def cluster(cluster_url: str) -> AsyncIterator[Scripts]:
    transport = Transport(Settings(url=SecretStr(cluster_url)))
    scripts = Scripts(transport)

    async def takes_writes() -> bool:
        try:
            if b"cluster_slots_assigned:0" in await ask(scripts, "CLUSTER", "INFO"):
                await ask(scripts, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            return b"cluster_state:ok" in await ask(scripts, "CLUSTER", "INFO")
        except BackendError:
            return False

    await eventually(takes_writes, "the cluster has its slots", timeout_s=30)
    yield scripts
    await transport.aclose()


@pytest.mark.parametrize("name", CALLS)
async def test_the_keys_of_a_script_are_of_one_slot(cluster: Scripts, name: str) -> None:
    assert isinstance(await CALLS[name](cluster, Keys()), Reply)


async def test_keys_of_two_slots_would_be_refused(cluster: Scripts) -> None:
    keys = Keys()
    assert await ask(cluster, "CLUSTER", "KEYSLOT", keys.memory("a")) != await ask(
        cluster, "CLUSTER", "KEYSLOT", keys.memory("b")
    )
    with pytest.raises(CommandRefused, match=r"CROSSSLOT|same slot"):
        await cluster.delete_record(
            keys.memory("a"), index=keys.memory("b"), member="m", only_if_gone=False
        )


async def test_a_log_works_there(cluster: Scripts) -> None:
    log = Keys().updates("works")
    await cluster.clear_log(log, topics=["t"])
    assert (await append(cluster, log, "a", topic="t", announce=True)).facts[0] == 1


async def test_calls_of_several_sessions_share_no_command_there(cluster: Scripts) -> None:
    """It is asked once, before anything is shared; the order is kept from the first call on."""
    await ask(cluster, "CONFIG", "RESETSTAT")
    logs = [Keys().updates(f"shares-{number}") for number in range(10)]
    for log in logs:
        await cluster.clear_log(log, topics=[])
    for turn in range(3):
        rows = [f"{turn}-{number}" for number in range(5)]
        await asyncio.gather(*(append(cluster, log, row) for row in rows for log in logs))
    for log in logs:
        found = [row_id for _, row_id in await rows_of(cluster, log)]
        assert found == [f"{turn}-{number}" for turn in range(3) for number in range(5)]
    errors = await ask(cluster, "INFO", "errorstats")
    assert errors.count(b"errorstat_CROSSSLOT:count=1") == errors.count(b"errorstat_CROSSSLOT")
