"""A worker process with keys and a store of claims, that kills itself once at a planted place."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.payloads.claims import open_claims
from redis_state.serialization.claim_store import ClaimStore
from redis_state.worker import AgentWorker, TaskContext

LARGE = "marker-of-a-large-payload " * 4_000


class Dying:
    """A store of claims at whose calls the process dies: at the place that is named, once."""

    def __init__(self, claims: ClaimStore, folder: Path, place: str) -> None:
        self.get = claims.get
        self.delete = claims.delete
        self._put = claims.put
        self._mark = folder / "killed"
        self._place = place
        self._count = 0

    def here(self, place: str) -> None:
        """Die, if this is the place, and nobody has died there."""
        if place == self._place:
            try:
                self._mark.touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._count += 1
        self.here(f"before put {self._count}")
        await self._put(key, data)
        self.here(f"after put {self._count}")


def main(argument: dict[str, Any]) -> None:
    """Serve a handler that passes on what is large."""
    claims = Dying(open_claims(argument["claims"]), Path(argument["folder"]), argument["place"])

    async def passing(ctx: TaskContext) -> str:
        one = await ctx.step("one", lambda: ctx.input)
        claims.here("between steps")
        two = await ctx.step("two", lambda: one)
        decision = await ctx.pause("go", {"about": LARGE}, name="go")
        claims.here("after the pause")
        return str(two if decision.value == LARGE else None)

    settings = Settings(
        url=SecretStr(argument["url"]),
        namespace=argument["namespace"],
        payload_keys=SecretStr(argument["keys"]),
        payload_codec=argument["codec"],
        claim_check_bytes=10_000,
        claim_check_store=claims,
    )
    AgentWorker(
        {"passing": passing},
        settings=settings,
        queue=argument["queue"],
        lease_s=1.0,
        poll_s=0.01,
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
