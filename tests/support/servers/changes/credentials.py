"""A vault of passwords that it replaces, and servers whose user has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.settings import Credentials, make_settings
from redis_state.transport.sending.sender import Sender
from tests.support.servers.faults import run_server, sender_to, short_directory

USER = "agent"
VALID_S = 0.3
RIGHTS = ("on", "~*", "&*", "+@all")

Report = Callable[..., Awaitable[Any]]


class Vault:
    """Makes passwords, tells the servers, and provides the newest."""

    def __init__(self, *servers: Report, valid_s: float | None = VALID_S) -> None:
        self._servers = servers
        self._valid_s = valid_s
        self.made = 0
        self.given = 0

    @property
    def password(self) -> str:
        """The newest password."""
        return f"secret-{self.made}"

    async def add(self) -> None:
        """Have the servers accept the newest password too."""
        await self._each("ACL", "SETUSER", USER, *RIGHTS, f">{self.password}")

    async def drop(self, old: str) -> None:
        """Have the servers refuse a password."""
        await self._each("ACL", "SETUSER", USER, f"<{old}")

    async def rotate(self) -> None:
        """Make another password the only one, after a time in which both are accepted."""
        old = self.password
        self.made += 1
        await self.add()
        if self.made > 1:
            await asyncio.sleep(VALID_S)
            await self.drop(old)

    async def cut(self) -> int:
        """End every connection of the user; return how many there were."""
        return sum(await self._each("CLIENT", "KILL", "USER", USER))

    async def __call__(self) -> Credentials:
        """Provide the newest password."""
        self.given += 1
        # As a service that is queried does.
        await asyncio.sleep(0.005)
        return Credentials(SecretStr(self.password), USER, self._valid_s)

    async def _each(self, *command: str) -> list[Any]:
        return [await report(*command) for report in self._servers]


def report_to(sender: Sender) -> Report:
    """Give what sends commands to a server beside what is tested."""

    def report(*command: str) -> Awaitable[Any]:
        return sender.send(*command, repeatable=True)

    return report


@asynccontextmanager
async def rotating_server(*options: str) -> AsyncGenerator[tuple[str, Vault]]:
    """Run a server whose user has a password of a vault."""
    with short_directory() as directory, run_server(directory, *options) as url:
        async with sender_to(url) as admin:
            vault = Vault(report_to(admin))
            await vault.rotate()
            yield url, vault


def settings_of(url: str, provider: Any, **options: Any) -> Settings:
    """Make settings whose credentials come from a provider."""
    return make_settings(url, namespace="rotates", credentials=provider, **options)
