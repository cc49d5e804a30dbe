"""What the questions to one server share: how it is read, and how it is answered."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.doctor.finding import Finding, NotReported, Verdict
from redis_state.errors import CommandRefused
from redis_state.settings import Settings
from redis_state.transport.connections.address import Address
from redis_state.transport.diagnostics import Diagnostics


class ServerQuestions:
    """A server, what it says of itself in INFO, and its settings."""

    def __init__(self, settings: Settings, address: Address, ask: Diagnostics) -> None:
        self._settings = settings
        self._address = address
        self._server = str(address)
        self._ask = ask
        self._info: Mapping[str, str] = {}

    def _sound(self, question: str, says: str) -> Finding:
        return Finding(self._server, question, Verdict.SOUND, says)

    def _unknown(self, question: str, why: str) -> Finding:
        return Finding(self._server, question, Verdict.UNKNOWN, why)

    def _finding(self, question: str, says: str, means: str, do: str) -> Finding:
        return Finding(self._server, question, Verdict.FINDING, says, means, do)

    def _field(self, name: str) -> str:
        """Return a field of INFO. Errors: NotReported."""
        if name not in self._info:
            raise NotReported(f"the server does not say its {name}")
        return self._info[name]

    async def _setting(self, name: str) -> str:
        """Return a setting. Errors: NotReported, CommandRefused."""
        pair: list[bytes] = await self._ask.setting(name)
        if len(pair) < 2:  # noqa: PLR2004 - a name and a value
            raise NotReported(f"the server has no setting {name}")
        return pair[1].decode()

    async def _setting_if_shown(self, name: str) -> str | None:
        """Return a setting; None if the server keeps it from this user, as services do."""
        try:
            return await self._setting(name)
        except (CommandRefused, NotReported):
            return None

    async def _hides(self, name: str) -> bool:
        return await self._setting_if_shown(name) is None

    def _failed(self, status: str) -> bool:
        """Return whether a write of the server to its disk has failed, the last time."""
        is_of_file = status.startswith("aof_")
        # What an appendonly file met stays in INFO once there is none.
        if is_of_file and self._field("aof_enabled") != "1":
            return False
        return self._info.get(status, "ok") != "ok"


def info_pairs(text: bytes) -> dict[str, str]:
    """Read a reply of INFO."""
    return split_pairs(text.decode("utf-8", "replace").splitlines(), ":")


def split_pairs(parts: list[str], sign: str) -> dict[str, str]:
    """Read names and values, with a sign between them."""
    split = [part.partition(sign) for part in parts]
    return {name: value for name, found, value in split if found}
