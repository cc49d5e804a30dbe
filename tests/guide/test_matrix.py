"""The table of the servers guide is the matrix that is run."""

from __future__ import annotations

from pathlib import Path

from tools.matrix import CLIENTS, PYTHONS, ROWS, SERVERS, table

ROOT = Path(__file__).resolve().parents[2]


def test_the_servers_guide_has_the_table_of_the_matrix() -> None:
    assert table() in (ROOT / "docs" / "guides" / "servers.md").read_text(encoding="utf-8")


def test_each_server_meets_each_client_and_each_python_meets_both() -> None:
    assert {(row.server, row.client) for row in ROWS} == {
        (server, client) for server in SERVERS for client in CLIENTS
    }
    for python in PYTHONS:
        own = [row for row in ROWS if row.python == python]
        assert {row.server for row in own} == set(SERVERS)
        assert {row.client for row in own} == set(CLIENTS)
