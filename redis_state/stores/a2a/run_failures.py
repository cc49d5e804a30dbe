"""Why runs of A2A tasks failed on this server: the reason that the ends of these tasks give."""

from __future__ import annotations

from time import monotonic

from redis_state.errors import BackendError, InvalidField, NoConnection, StoreFull
from redis_state.stores.a2a.task_model import Ref

_FAILED = "The server that worked on this task could not {}: {}."
# A reason is kept until another server must have found the task, which takes less than so many
# leases and a second more.
_LEASES, _MORE_S = 10, 1


class RunFailures:
    """Reasons by task, each for as long as it may explain the task's end."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._recorded: dict[Ref, tuple[str, float]] = {}

    def record(self, ref: Ref, what: str, error: BaseException) -> None:
        """Record what the server could not do for a task, and which error it met."""
        match error:
            case StoreFull():
                cause = f"Redis was out of memory for {self._lease_s:g} s"
            case NoConnection():
                cause = f"Redis did not reply for {self._lease_s:g} s"
            case BackendError():
                cause = "Redis refused it"
            case InvalidField():
                cause = str(error)
            case _:
                cause = "it was broken off"
        now = monotonic()
        self._recorded = {
            each: recorded for each, recorded in self._recorded.items() if now < recorded[1]
        }
        until = now + _LEASES * self._lease_s + _MORE_S
        self._recorded[ref] = (_FAILED.format(what, cause), until)

    def forget(self, ref: Ref) -> None:
        """Forget a task's reason: its run continued."""
        self._recorded.pop(ref, None)

    def reason(self, ref: Ref) -> str:
        """Return why the run of a task failed here; empty if it did not, or long ago."""
        stated, until = self._recorded.get(ref, ("", 0.0))
        return stated if monotonic() < until else ""
