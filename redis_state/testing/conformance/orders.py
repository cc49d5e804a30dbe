"""What a worker process of a check is to do, and how it is given that."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import SecretStr

from redis_state.settings import Settings
from redis_state.testing.stores import own_settings

HANDLER: Final = "errand"
# In the environment, because others can read a command line.
VARIABLE: Final = "REDIS_STATE_CONFORMANCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker process is to do."""

    reference: str
    url: str
    namespace: str
    payload_keys: str | None
    folder: str
    name: str
    kill: list[str]
    hold: list[str]
    lease_s: float
    grace_s: float
    parent: int

    def environment(self) -> dict[str, str]:
        """Return it as the process reads it."""
        return {VARIABLE: json.dumps(asdict(self))}

    def settings(self) -> Settings:
        """Return the settings of the store."""
        keys = None if self.payload_keys is None else SecretStr(self.payload_keys)
        return own_settings(self.url, self.namespace, payload_keys=keys)
