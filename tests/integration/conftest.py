"""A PostgreSQL for all tests of one process that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import OwnPostgres
from tests.support.servers.proxies.pgbouncer import PgBouncer


@pytest.fixture(scope="session")
def postgres() -> Iterator[OwnPostgres]:
    """Start a server for the test process."""
    server = OwnPostgres()
    server.start()
    yield server
    server.close()


@pytest.fixture
def pooler(postgres: OwnPostgres) -> Iterator[PgBouncer]:
    """Start a pooler before the server, whose two connections all clients share."""
    pooler = PgBouncer(postgres)
    pooler.start()
    yield pooler
    pooler.close()
