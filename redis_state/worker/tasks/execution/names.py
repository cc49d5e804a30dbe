"""The names of calls: steps, pauses and children are found by them in every later run.

A name that is used several times is counted where it is called: in the handler, in a `branch` of
it, or in the work of another step. So the second "fetch" of a loop is ``fetch#2`` in every run.
Counting needs an order, and concurrent asyncio tasks have none. So a name belongs to the first
asyncio task that uses it.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from copy import copy
from typing import Any, Self

from redis_state.errors import InvalidField
from redis_state.models import UpdateType
from redis_state.worker.tasks.recorded.call_order import CALLS
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun

# In a keyed branch: the branch's name, then its key, then what is done in it.
_IN_KEYED_BRANCH = re.compile(r"(?:[^#]|##)*#[=~][^/]+/")


# Stands for the asyncio task of a scope whose run is over.
ENDED = object()


class NameScope:
    """Where names are counted. ``entry`` is that of the step whose work it is, if it is one."""

    def __init__(
        self,
        path: str = "",
        *,
        home: object = None,
        name: str = "",
        entry: str = "",
        attempt: str = "",
        outer: tuple[str, ...] = (),
    ) -> None:
        self.name: str = name
        self.entry: str = entry
        # Where an attempt of a step's work counts its updates: the next one may publish others.
        self.attempt: str = attempt
        self.path: str = path
        # The steps in whose work the caller is, one in the other.
        self.entries: tuple[str, ...] = (*outer, entry) if entry else outer
        # The asyncio task in which it was begun.
        self.home: object = home or running_in()
        self._counts: dict[str, int] = {}
        self._callers: dict[str, object] = {}

    def let_go(self) -> None:
        """Forget who has called: an asyncio task that failed refers back to the run by its error.

        After the run only. Every later caller is another one, and finds that the run has ended.
        """
        self.home = ENDED
        self._callers.clear()

    def ask(self, kind: str, name: str) -> str:
        """Count a name, and return its place. Errors: InvalidField."""
        return self.ask_by(running_in(), kind, name)

    def ask_by(self, caller: object, kind: str, name: str) -> str:
        """Do the same for a ``caller`` that is known already."""
        counted = f"{kind}:{name}"
        # A callback of the loop is no asyncio task: there the caller is None.
        if caller is None or self._callers.get(counted) is not caller or name.__class__ is not str:
            _check_text(name)
            self._check_caller(caller, kind, name)
        number = self._counts[counted] = self._counts.get(counted, 0) + 1
        return self._place(name, number)

    def peek(self, kind: str, name: str) -> str:
        """Return the place of the next use of a name."""
        _check_text(name)
        return self._place(name, self._counts.get(f"{kind}:{name}", 0) + 1)

    def keyed(self, kind: str, name: str, key: str) -> str:
        """Return the place of a name that a key identifies, not counting."""
        if "#" not in key:
            return self.keyed_before(kind, name, key)
        # Doubled in it too: else a key could be the text of a place inside of another key's step.
        place = self.peek(kind, name).rpartition("#")[0]
        return f"{place}#~{key.replace('#', '##')}"

    def keyed_before(self, kind: str, name: str, key: str) -> str:
        """Return the place that earlier versions of the library gave to any key."""
        place = self.peek(kind, name).rpartition("#")[0]
        return f"{place}#={key}"

    def _place(self, name: str, number: int) -> str:
        # Doubled, so that a single one is always ours, and no two places are the same text.
        escaped = name.replace("#", "##")
        return f"{self.path}{escaped}#{number}"

    def _check_caller(self, caller: object, kind: str, name: str) -> None:
        if self._callers.setdefault(f"{kind}:{name}", caller) is not caller:
            raise InvalidField(
                "name",
                f"{name!r} is used by two asyncio tasks at once, whose order may be another in the "
                "next run: give each its own names, or its own ctx.branch(...)",
            )


WORKING: ContextVar[NameScope | None] = ContextVar("redis_state_step", default=None)


class CallNames:
    """The names of one run, or of one branch of its handler, and how far the run has come."""

    def __init__(self, started: StartedRun) -> None:
        self._started = started
        self._requested: set[str] = set()
        # How far the handler had come when it asked for an entry.
        self._places: dict[str, int] = {}
        self._root = self._scope = NameScope()
        self._made_in: NameScope | None = None

    def branch(self, name: str) -> Self:
        """Make a part of the handler that counts names for itself."""
        made = copy(self)
        # Counted with the steps of this name, or both would name what is in them alike.
        scope = NameScope(f"{self._here.ask('step', name)}/")
        made._scope, made._made_in = scope, WORKING.get()  # noqa: SLF001 - a copy of this object
        return made

    def keyed_branch(self, name: str, key: str) -> Self:
        """Make a part that its key finds. Each call of this counts the names in it from the start.

        Errors: InvalidField.
        """
        if not key or "/" in key:
            raise InvalidField("key", "needs text without a slash")
        made = copy(self)
        scope = NameScope(f"{self._here.keyed('step', name, key)}/")
        made._scope, made._made_in = scope, WORKING.get()  # noqa: SLF001 - a copy of this object
        return made

    def pass_own(self, recorded: Iterable[str]) -> None:
        """Take what is recorded in this branch as used."""
        for entry in recorded:
            if entry.partition(":")[2].startswith(self._scope.path):
                self.pass_over(entry)

    def pass_keyed(self, name: str, recorded: Iterable[str]) -> None:
        """Take what is recorded of steps of this name that a key identifies as used."""
        place = self._here.peek("step", name).rpartition("#")[0]
        for entry in recorded:
            if entry.startswith((f"step:{place}#=", f"step:{place}#~")):
                self.pass_over(entry)

    def pass_keyed_branches(self, recorded: Iterable[str]) -> None:
        """Take what is recorded in keyed branches as used, and calls as made in any order."""
        self._started.order.sequential = False
        for entry in recorded:
            if _IN_KEYED_BRANCH.match(entry.partition(":")[2]):
                self.pass_over(entry)

    def ask(self, kind: str, name: str) -> str:
        """Return the entry of the current use of a name, and count it."""
        return self.ask_keyed(f"{kind}:{self._here.ask(kind, name)}", counted=True)

    def ask_step(self, name: str) -> tuple[str, Lane]:
        """Count a step's name; return its entry, which is marked as used, and the lane."""
        # Each step asks, so what is asked of asyncio is asked once.
        working, caller = WORKING.get(), running_in()
        here = self._scope if working is None or working is self._made_in else working
        entry = f"step:{here.ask_by(caller, 'step', name)}"
        return entry, self._use(entry, working, caller, counted=True)

    def ask_keyed(self, entry: str, *, counted: bool = False) -> str:
        """Return an entry that is found without counting, and mark it as used."""
        self.use(entry, counted=counted)
        return entry

    def use(self, entry: str, *, counted: bool = False) -> Lane:
        """Mark an entry as used, and return the lane that uses it."""
        return self._use(entry, WORKING.get(), running_in(), counted=counted)

    def _use(self, entry: str, working: NameScope | None, caller: object, *, counted: bool) -> Lane:
        self._requested.add(entry)
        own = (working or self._root).home is caller
        if working is None and entry.startswith(CALLS):
            self._started.order.begin(entry, own=own, counted=counted)
        if own:
            lane = self._started.replay.named("" if working is None else working.entry)
        else:
            lane = self._lane_in(working, own=False, first=entry)
        lane.advance()
        self._places[entry] = lane.order
        return lane

    def pass_over(self, entry: str) -> None:
        """Take an entry of an earlier run as used."""
        self._requested.add(entry)

    def place_of(self, entry: str) -> int:
        """Return how far the handler had come when it used an entry."""
        return self._places.get(entry, 0)

    @property
    def reached(self) -> int:
        """How far all asyncio tasks of the handler have come."""
        return self._started.replay.named("").order

    def handler_place_of(self, entry: str) -> int:
        """Return the same, but 0 in a step's work, whose places are not those of the handler."""
        return 0 if WORKING.get() is not None else self.place_of(entry)

    def lane(self, first: Any = None, *, emits: bool = False) -> Lane:
        """Return the lane of the running asyncio task, which is about to do ``first``."""
        working = WORKING.get()
        own = (working or self._root).home is running_in()
        return self._lane_in(working, own=own, first=first, emits=emits)

    def _lane_in(
        self, working: NameScope | None, *, own: bool, first: Any, emits: bool = False
    ) -> Lane:
        if working is None and not own:
            self._started.order.sequential = False
        within = working or self._root
        scope = within.attempt if emits else within.entry
        branch = "" if self._scope is self._root else self._scope.path
        return self._started.replay.lane(scope, own=own, branch=branch, first=first)

    def check_same(self, entry: str, asks: str) -> None:
        """Refuse another asyncio task than the handler's own what an earlier run did not ask so.

        That run may have ended before a second task came to use the name: its note may be the
        other's. The handler's own task always comes in one order. Errors: InvalidField.
        """
        note = self._started.journal.get(entry)
        if note is None or running_in() is self._root.home or note.get("asks", asks) == asks:
            return
        raise InvalidField(
            "name",
            f"{entry!r} was another question in an earlier run, maybe another asyncio task's: give "
            "each its own names, or its own ctx.branch(...)",
        )

    def lane_of(self, key: str | None, kind: UpdateType, content: Any) -> Lane:
        """Return the lane of an update: that of its key, or of the running asyncio task."""
        if key is None:
            return self.lane([kind.value, content], emits=True)
        lane = self._started.replay.named(f"key:{key}")
        lane.once = True
        return lane

    def next_entry(self, kind: str, name: str) -> str:
        """Return the entry of the next use of a name, here."""
        return f"{kind}:{self._here.peek(kind, name)}"

    @property
    def in_own_task(self) -> bool:
        """Whether the caller is the asyncio task in which the handler began."""
        return running_in() is self._root.home

    @property
    def _here(self) -> NameScope:
        """Where names are counted now: the step whose work this is, unless made inside of it."""
        working = WORKING.get()
        return self._scope if working is None or working is self._made_in else working


def _check_text(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidField("name", f"text is needed, not {type(name).__name__}")


def running_in() -> object:
    """Return the asyncio task, or the thread, that calls."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return threading.current_thread()
