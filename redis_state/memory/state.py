"""What a memory holds, and the changes that can be made to it: pure, without I/O.

Every change can be made again on a newer state, as it was read from the server: a turn is added
once by its id, a summary replaces only the turns it was made of. So two processes that change one
memory at a time both keep what they did, in the order in which they saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from redis_state.errors import MemoryBudgetExceeded
from redis_state.memory.types import MemoryHealth, ShortTermMemoryConfig, default_token_estimator

# A turn as it is stored: PenguiFlow's fields and the id under which it was taken.
Turn: TypeAlias = dict[str, Any]

# So many turns back, a repeated one is recognised.
REMEMBERED_IDS = 512


@dataclass(slots=True)
class State:
    """A memory. ``folds`` counts the summaries made, ``known`` the ids of the last turns taken."""

    health: MemoryHealth = MemoryHealth.HEALTHY
    summary: str = ""
    turns: list[Turn] = field(default_factory=list[Turn])
    pending: list[Turn] = field(default_factory=list[Turn])
    backlog: list[Turn] = field(default_factory=list[Turn])
    known: list[str] = field(default_factory=list[str])
    folds: int = 0

    def copy(self) -> State:
        """Return a state that can be changed. The turns themselves never are."""
        return replace(
            self,
            turns=[*self.turns],
            pending=[*self.pending],
            backlog=[*self.backlog],
            known=[*self.known],
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a configuration says about a state."""

    config: ShortTermMemoryConfig
    too_much: type[MemoryBudgetExceeded] = MemoryBudgetExceeded

    @property
    def estimate(self) -> Callable[[str], int]:
        """The estimator of tokens."""
        return self.config.token_estimator or default_token_estimator

    def payload(self, state: State) -> dict[str, Any]:
        """Return what of a state a model is shown."""
        if self.config.strategy == "none":
            return {}
        shown: dict[str, Any] = {"recent_turns": self.show(state.turns)}
        if self._shows_summary(state):
            if state.pending:
                shown["pending_turns"] = self.show(state.pending)
            if state.summary:
                shown["summary"] = state.summary
        return shown

    def show(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """Return turns as a model is shown them."""
        return [self._show(turn) for turn in turns]

    def tokens(self, state: State) -> int:
        """Estimate what a state costs."""
        payload = self.payload(state)
        return self.estimate(json.dumps(payload, ensure_ascii=False, sort_keys=True))

    def fit(self, state: State) -> None:
        """Bring a state within its total budget. Errors: MemoryBudgetExceeded under ``error``."""
        budget = self.config.budget
        while 0 < budget.total_max_tokens < self.tokens(state):
            if budget.overflow_policy == "error":
                raise self.too_much("memory context exceeded total_max_tokens")
            shortens = budget.overflow_policy == "truncate_summary" and self._shows_summary(state)
            if shortens and state.summary:
                self._shorten(state)
            elif state.pending:
                state.pending.pop(0)
            elif state.turns:
                state.turns.pop(0)
            else:
                state.summary = ""
                return

    def fit_summary(self, state: State) -> None:
        """Bring the summary within its own budget, keeping its end."""
        most = self.config.budget.summary_max_tokens
        if most <= 0 or not state.summary:
            state.summary = ""
            return
        tokens = self.estimate(state.summary)
        if tokens <= most:
            return
        if self.config.budget.overflow_policy == "error":
            raise self.too_much("summary exceeded budget: summary_max_tokens")
        kept = max(1, int(len(state.summary) * most / tokens))
        state.summary = state.summary[-kept:]

    def keep_recent(self, state: State) -> list[Turn]:
        """Take the turns beyond those kept in full out of a state, and return them."""
        most = max(0, self.config.budget.full_zone_turns)
        extra = max(0, len(state.turns) - most)
        gone = state.turns[:extra]
        del state.turns[:extra]
        return gone

    def put_back(self, state: State, turns: Sequence[Turn]) -> None:
        """Add turns to the backlog, dropping the oldest beyond its limit."""
        state.backlog.extend(turns)
        del state.backlog[: max(0, len(state.backlog) - self.config.recovery_backlog_limit)]

    def _shorten(self, state: State) -> None:
        """Cut the summary's beginning: to its own budget first, then until the whole fits.

        Never leaves it as it is, so that `fit` comes to an end.
        """
        before = state.summary
        self.fit_summary(state)
        if state.summary != before:
            return
        short, long = 0, len(before) - 1
        while short < long:
            kept = (short + long + 1) // 2
            if self.tokens(replace(state, summary=before[-kept:])) <= self._total:
                short = kept
            else:
                long = kept - 1
        state.summary = before[-short:] if short else ""

    @property
    def _total(self) -> int:
        return self.config.budget.total_max_tokens

    def _shows_summary(self, state: State) -> bool:
        rolling = self.config.strategy == "rolling_summary"
        return rolling and state.health != MemoryHealth.DEGRADED

    def _show(self, turn: Turn) -> dict[str, Any]:
        shown = {"user": turn["user_message"], "assistant": turn["assistant_response"]}
        digest = turn["trajectory_digest"]
        if self.config.include_trajectory_digest and digest is not None:
            lists = {name: [*digest[name]] for name in ("tools_invoked", "artifacts_refs")}
            shown["trajectory_digest"] = {**digest, **lists}
        return shown


class MemoryChange(Protocol):
    """Something done to a memory that is not in the server yet."""

    refused: Exception | None

    def apply(self, state: State, rules: Rules) -> bool:
        """Make the change; False if it has no place in this state."""
        ...


@dataclass(slots=True)
class Added:
    """A turn came."""

    turn: Turn
    refused: Exception | None = None

    def apply(self, state: State, rules: Rules) -> bool:
        """Add the turn, unless one of its id was taken before."""
        if self.turn["id"] in state.known:
            return False
        state.known.append(self.turn["id"])
        del state.known[:-REMEMBERED_IDS]
        state.turns.append(self.turn)
        gone = rules.keep_recent(state)
        if rules.config.strategy == "rolling_summary":
            if state.health == MemoryHealth.DEGRADED:
                rules.put_back(state, gone)
            else:
                state.pending.extend(gone)
        rules.fit(state)
        return True


@dataclass(slots=True)
class Folded:
    """Turns became part of the summary that was made of ``previous`` and them."""

    ids: frozenset[str]
    folds: int
    previous: str
    summary: str
    refused: Exception | None = None

    def apply(self, state: State, rules: Rules) -> bool:
        """Replace the turns, unless another summary was made meanwhile."""
        if (state.folds, state.summary) != (self.folds, self.previous):
            return False
        if not _any_of(self.ids, [*state.backlog, *state.pending]):
            return False
        left = [turn for turn in state.backlog if turn["id"] not in self.ids]
        left += [turn for turn in state.pending if turn["id"] not in self.ids]
        state.pending, state.backlog = left, []
        state.summary = self.summary
        state.folds += 1
        state.health = MemoryHealth.HEALTHY
        rules.fit_summary(state)
        rules.fit(state)
        return True


@dataclass(slots=True)
class Degraded:
    """The summarizer failed too often: only recent turns are shown until it recovers."""

    ids: frozenset[str]
    refused: Exception | None = None

    def apply(self, state: State, rules: Rules) -> bool:
        """Put the waiting turns back, unless another process has summarised them."""
        if not _any_of(self.ids, [*state.backlog, *state.pending]):
            return False
        state.health = MemoryHealth.DEGRADED
        waiting, state.pending = state.pending, []
        rules.put_back(state, waiting)
        return True


@dataclass(slots=True)
class Recovered:
    """There is nothing to catch up with: the summarizer may try again with the next turns."""

    refused: Exception | None = None

    def apply(self, state: State, rules: Rules) -> bool:
        """End the degradation, if there is still nothing in the backlog."""
        del rules
        if state.backlog or state.health != MemoryHealth.DEGRADED:
            return False
        state.health = MemoryHealth.HEALTHY
        return True


@dataclass(slots=True)
class Replaced:
    """A change that replaces the whole state."""

    state: State
    refused: Exception | None = None

    def apply(self, state: State, rules: Rules) -> bool:
        """Take over the whole state."""
        del rules
        given = self.state.copy()
        for name in State.__slots__:
            setattr(state, name, getattr(given, name))
        return True


def settled(state: State, *, recovering: bool = False) -> State:
    """Return a state that was read as one to continue with.

    ``recovering`` means that this process works on the backlog. Another process that did may have
    died, so its backlog is recovered again. PenguiFlow can leave turns in the backlog of a memory
    that is not degraded. They would never be seen again, so they wait once more.
    """
    state = state.copy()
    if state.health in {MemoryHealth.RECOVERING, MemoryHealth.DEGRADED}:
        if recovering:
            state.health = MemoryHealth.RECOVERING
        elif state.health == MemoryHealth.RECOVERING:
            state.health = MemoryHealth.DEGRADED
            state.pending, state.backlog = [], [*state.backlog, *state.pending]
    elif state.backlog:
        state.pending, state.backlog = [*state.backlog, *state.pending], []
    return state


def _any_of(ids: Collection[str], turns: Sequence[Turn]) -> bool:
    return any(turn["id"] in ids for turn in turns)
