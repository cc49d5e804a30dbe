"""A server that a test starts by number finds its port free."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import children

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not _RANGE.exists(), reason="only Linux states which ports connections take")
def test_no_port_of_a_test_is_one_that_an_outgoing_connection_takes(
    unused_tcp_port: int, unused_tcp_port_factory: Callable[[], int]
) -> None:
    first, last = map(int, _RANGE.read_text(encoding="ascii").split())
    for port in (unused_tcp_port, unused_tcp_port_factory()):
        # A node of a cluster takes the second one for its bus.
        assert not {port, port + 10_000} & set(range(first, last + 1))


_ANOTHER = """
import os
os.getpid = lambda: {begin}
from tests.support.servers.ports import free_port
print(*(free_port() for _ in range(300)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that end with a process")
def test_a_process_that_begins_to_look_at_the_same_place_gets_ports_of_its_own(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    ours = {unused_tcp_port_factory() for _ in range(300)}
    code = _ANOTHER.format(begin=os.getpid())
    ran = children.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert not ours & {int(port) for port in ran.stdout.split()}
