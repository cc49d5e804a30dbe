"""A server that a test starts by number finds its port free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not _RANGE.exists(), reason="only Linux states which ports connections take")
def test_no_port_of_a_test_is_one_that_an_outgoing_connection_takes(
    unused_tcp_port: int, unused_tcp_port_factory: Callable[[], int]
) -> None:
    first, last = map(int, _RANGE.read_text(encoding="ascii").split())
    for port in (unused_tcp_port, unused_tcp_port_factory()):
        # A node of a cluster takes the second one for its bus.
        assert not {port, port + 10_000} & set(range(first, last + 1))
