"""Processes that kill themselves at each round trip in turn: how they die, and who comes after."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import SecretStr
from redis.asyncio.client import Pipeline

from redis_state import Settings
from redis_state.transport.sending.calls import CallSender
from redis_state.transport.wire.resp import PackedCommand, PreparedScript

# How many of those who come after are at work at the same time.
AT_ONCE = 6
COUNTED: ContextVar[bool] = ContextVar("counted", default=False)


@dataclass
class Death:
    """Kill this process at its n-th round trip: before it is sent, or when its reply is in."""

    at: int
    edge: str
    stated: int
    seen: int = 0

    def plant(self) -> None:
        """Count what the sender and the queue's client send for what is counted."""
        send, run, ask, execute = CallSender.send, CallSender.run, CallSender.ask, Pipeline.execute

        def watched(call: Callable[..., asyncio.Future[Any]]) -> Any:
            def watching(
                sender: CallSender, what: Any, *more: Any, **options: Any
            ) -> asyncio.Future[Any]:
                if not self._reached(name_of(what)):
                    return call(sender, what, *more, **options)
                self._die_if("before")
                future = call(sender, what, *more, **options)
                future.add_done_callback(lambda _: self._die_if("after"))
                return future

            return watching

        async def watched_execute(pipe: Any, *arguments: Any, **options: Any) -> Any:
            if not self._reached("the queue"):
                return await execute(pipe, *arguments, **options)
            self._die_if("before")
            found = await execute(pipe, *arguments, **options)
            self._die_if("after")
            return found

        CallSender.send = watched(send)  # type: ignore[method-assign]
        CallSender.run = watched(run)  # type: ignore[method-assign]
        CallSender.ask = watched(ask)  # type: ignore[method-assign]
        Pipeline.execute = watched_execute  # type: ignore[method-assign, assignment]

    def _reached(self, name: str) -> bool:
        self.seen += COUNTED.get()
        here = COUNTED.get() and self.seen == self.at
        if here:
            os.write(self.stated, json.dumps(name).encode())
        return here

    def _die_if(self, edge: str) -> None:
        if edge == self.edge:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def uncounted() -> Generator[None]:
    """Do what a test does to its keys, at which nobody dies."""
    was = COUNTED.set(False)
    try:
        yield
    finally:
        COUNTED.reset(was)


def name_of(what: str | PreparedScript | PackedCommand) -> str:
    """Return the name of the script or command that is sent."""
    match what:
        case PreparedScript():
            return what.script.name
        case PackedCommand():
            return str(what.command[0])
        case _:
            return what


def fork(work: Callable[[int], Coroutine[Any, Any, Any]]) -> tuple[int, int]:
    """Run a coroutine in a child; return its id, and where it says what it has to say."""
    heard, stated = os.pipe()
    pid = os.fork()
    if pid:
        os.close(stated)
        return pid, heard
    try:
        found = asyncio.run(work(stated))
        if found is not None:
            os.write(stated, json.dumps(found).encode())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - nothing may return from a child
        os.write(stated, json.dumps([f"{type(error).__name__}: {error}"]).encode())
        os._exit(1)


def join(pid: int, heard: int) -> tuple[int, Any]:
    """Wait for a child; return its status, negative for a signal, and what it said."""
    stated = b""
    while data := os.read(heard, 1 << 16):
        stated += data
    os.close(heard)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(stated) if stated else None


@dataclass
class Dying(ABC):
    """One death, in a namespace of its own."""

    settings: Settings
    phase: str
    edge: str
    at: int

    @abstractmethod
    async def prepare(self, _: int, /) -> None:
        """Have what is there before."""

    @abstractmethod
    async def die(self, stated: int, /) -> None:
        """Die on the way. To return is to survive."""

    @abstractmethod
    async def recover(self, _: int, /) -> list[str]:
        """Have the rest done, and tell what is wrong then."""


def die_at_each(
    argument: dict[str, Any], phases: Iterable[str], case_of: type[Dying]
) -> list[dict[str, Any]]:
    """Die at each ``stride``-th round trip of each phase; return what those who came after found.

    The phases begin at different ones. Those who come after wait for leases to run out, so some of
    them do so at once.
    """
    results: list[dict[str, Any]] = []
    recovering: list[tuple[dict[str, Any], int, int]] = []

    def recovered() -> None:
        death, pid, heard = recovering.pop(0)
        _, problems = join(pid, heard)
        results.append(death | {"problems": problems})

    stride = argument.get("stride", 1)
    for number, phase in enumerate(phases):
        for at in range(1 + number % stride, 1_000, stride):
            name = f"{argument['namespace']}-{phase}-{argument['edge']}-{at}"
            settings = Settings(url=SecretStr(argument["url"]), namespace=name)
            case = case_of(settings, phase, argument["edge"], at)
            status, stated = join(*fork(case.prepare))
            assert status == 0, (name, stated)
            status, trip = join(*fork(case.die))
            if status == 0:
                break
            assert status == -signal.SIGKILL, trip
            if len(recovering) == AT_ONCE:
                recovered()
            death = {"phase": phase, "at": at, "trip": trip}
            recovering.append((death, *fork(case.recover)))
    while recovering:
        recovered()
    return results


class TripCase(Protocol):
    """One death on a way that has no phases."""

    async def die(self, stated: int, /) -> None:
        """Die on the way. To return is to survive."""
        ...

    async def recover(self, _: int, /) -> list[str]:
        """Have the rest done, and tell what is wrong then."""
        ...


def die_at_each_trip(
    argument: dict[str, Any], case_at: Callable[[int, str], TripCase]
) -> list[dict[str, Any]]:
    """Die before, or after, each ``stride``-th round trip; return what those who came after found.

    ``case_at`` makes a case of a trip's number and a namespace of its own.
    """
    results: list[dict[str, Any]] = []
    for at in range(argument["first"], 10_000, argument["stride"]):
        case = case_at(at, f"{argument['namespace']}-{argument['edge']}-{at}")
        status, trip = join(*fork(case.die))
        if status == 0:
            break
        assert status == -signal.SIGKILL, trip
        _, problems = join(*fork(case.recover))
        results.append({"at": at, "trip": trip, "problems": problems})
    return results
