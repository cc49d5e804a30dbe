"""Who decides a pause, if actors are named: seats, votes, and later deciders. Without I/O.

Everybody who is named has a seat, a field of the token's hash. The script that takes the deciding
vote decides. A seat is handed on by its holder (delegation), and seats are added, or replaced,
after some time (escalation).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, cast

from redis_state.errors import AlreadyVoted, InvalidField, NotADecider
from redis_state.scripts import raw
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.stores.base import ms

MAX_DECIDERS = 100
MAX_ESCALATIONS = 10
MAX_NAME = 200

_SEAT = b"seat:"
_OPEN = b"open"

SeatState = Literal["open", "approved", "rejected", "delegated", "retired"]


@dataclass(frozen=True, slots=True)
class Escalate:
    """A rule of a pause: if it is open ``after`` some time, those in ``to`` decide it too.

    With ``replace`` they decide it instead of those who have not voted by then. Votes stand.
    """

    after: timedelta
    to: Collection[str]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Decider:
    """One who is named to decide a pause, and what became of that: ``state``, ``at`` a time.

    ``delegated_to`` has the vote of one who handed it on. ``"retired"`` is one whom an escalation
    replaced.
    """

    name: str
    state: SeatState
    at: datetime | None = None
    delegated_to: str | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote of a decision, as the handler gets it."""

    actor: str
    approved: bool
    value: Any = field(repr=False)
    at: datetime


@dataclass(frozen=True, slots=True)
class Escalation:
    """An escalation of an open pause: when, to whom, and whether it has happened."""

    at: datetime
    to: tuple[str, ...]
    replace: bool
    done: bool


class BallotOptions(TypedDict, total=False):
    """Who decides a pause: see `TaskContext.open_pause`."""

    of: Collection[str]
    approvals: int | None
    rejections: int | None
    escalate: Sequence[Escalate]


@dataclass(frozen=True, slots=True)
class Ballot:
    """Who decides a pause: how many approvals it needs of whom, and how many rejections reject it.

    0 ``rejections``: so many that the approvals cannot be reached.
    """

    of: tuple[str, ...]
    approvals: int
    rejections: int
    escalate: tuple[Escalate, ...]

    @classmethod
    def read(cls, options: BallotOptions, *, timeout_ms: int) -> Ballot | None:
        """Check who shall decide; None if nobody is named. Errors: InvalidField."""
        given = options.get("of")
        if given is None:
            for name in ("approvals", "rejections", "escalate"):
                if options.get(name):
                    raise InvalidField(name, "needs `of`: the names of those who decide")
            return None
        of = names_of("of", given)
        approvals, rejections = options.get("approvals"), options.get("rejections")
        # Without a number one of them decides, either way.
        most = 1 if rejections is None and approvals is None else None
        needed = 1 if approvals is None else _count("approvals", approvals, most=len(of))
        limit = most or 0
        if rejections is not None:
            limit = _count("rejections", rejections, most=len(of) - needed + 1)
        escalate = _escalations(options.get("escalate", ()), needed, timeout_ms)
        if len(of) + sum(len(each.to) for each in escalate) > MAX_DECIDERS:
            raise InvalidField(
                "escalate", f"needs {MAX_DECIDERS} names at most, with those of `of`"
            )
        return cls(of, needed, limit, escalate)

    def fields(self) -> dict[bytes, bytes]:
        """Return what the token's hash has of it."""
        fields = {b"approvals": b"%d" % self.approvals, b"rejections": b"%d" % self.rejections}
        if self.escalate:
            rules = [[ms(each.after), each.to, each.replace] for each in self.escalate]
            fields[b"escalate"] = codec.encode(rules)
        return fields | {_SEAT + raw(name): _OPEN for name in self.of}

    def report(self) -> dict[str, Any]:
        """Return what the pause's update says of it."""
        return {"of": list(self.of), "approvals": self.approvals}


def names_of(field: str, given: Any) -> tuple[str, ...]:
    """Check a list of names. Errors: InvalidField."""
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise InvalidField(field, "a list of names is needed")
    names = tuple(cast("Sequence[Any]", given))
    if not names or len(names) > MAX_DECIDERS:
        raise InvalidField(field, f"needs 1 to {MAX_DECIDERS} names")
    for name in names:
        name_of_actor(field, name)
    if len(set(names)) < len(names):
        raise InvalidField(field, "names one voter twice")
    return tuple(sorted(names)) if isinstance(given, set | frozenset) else names


def name_of_actor(field: str, given: Any) -> str:
    """Check a name. Errors: InvalidField."""
    if not isinstance(given, str):
        raise InvalidField(field, f"text is needed, not {type(given).__name__}")
    if not 0 < len(given) <= MAX_NAME:
        raise InvalidField(field, f"a name has 1 to {MAX_NAME} characters")
    return given


def vote_of(payloads: Payloads, actor: str, decision: Mapping[str, Any]) -> bytes:
    """Write a vote: alike for everything that is stored alike."""
    return payloads.document({"actor": actor, **decision}, "value", write=codec.canonical)


def votes_of(note: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the votes of a decision's note: when, and what."""
    return [(int(at), vote) for at, vote in note.get("votes", ())]


def raise_unless_voted(actor: str, seat: str) -> None:
    """Errors: AlreadyVoted, NotADecider, by the seat that a refused actor has, empty for none."""
    state, _, rest = seat.partition(" ")
    at, _, to = rest.partition(" ")
    if state in ("approved", "rejected"):
        raise AlreadyVoted(actor, at_ms=int(at), approved=state == "approved")
    raise NotADecider(actor, delegated_to=to or None)


def deciders_of(fields: Mapping[bytes, bytes]) -> tuple[Decider, ...]:
    """List the seats of a token's hash by name."""
    return tuple(
        sorted(
            (
                _decider(name.removeprefix(_SEAT), value)
                for name, value in fields.items()
                if name.startswith(_SEAT)
            ),
            key=lambda decider: decider.name,
        )
    )


def rules_of(escalate: bytes | None) -> list[tuple[int, list[str], bool]]:
    """Read the escalations of a token's hash: after how many ms, to whom, whether they replace."""
    rules: list[tuple[int, list[str], bool]] = codec.decode(escalate) if escalate else []
    return rules


def escalations_of(fields: Mapping[bytes, bytes]) -> tuple[Escalation, ...]:
    """List the escalations of a token's hash."""
    done, opened_ms = int(fields.get(b"escalated", 0)), int(fields[b"opened"])
    return tuple(
        Escalation(_at(opened_ms + after_ms), tuple(to), replace, number < done)
        for number, (after_ms, to, replace) in enumerate(rules_of(fields.get(b"escalate")))
    )


def _decider(name: bytes, seat: bytes) -> Decider:
    state, _, rest = seat.decode("utf-8", "surrogatepass").partition(" ")
    at, _, to = rest.partition(" ")
    # Behind the time of a vote stands its number, which orders votes.
    return Decider(
        name.decode("utf-8", "surrogatepass"),
        cast("SeatState", state),
        _at(int(at)) if at else None,
        to if state == "delegated" else None,
    )


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def vote_from(at_ms: int, vote: Mapping[str, Any], value: Any) -> Vote:
    """Make a vote of what a note has, with the value as the handler gets it."""
    return Vote(str(vote["actor"]), bool(vote["approved"]), value, _at(at_ms))


def _count(field: str, given: Any, *, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidField(field, f"a whole number is needed, not {type(given).__name__}")
    if not 1 <= given <= most:
        raise InvalidField(field, f"must be from 1 to {most}, of those who decide")
    return given


def _escalations(given: Any, approvals: int, timeout_ms: int) -> tuple[Escalate, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidField("escalate", "a list of Escalate is needed")
    rules = list(cast("list[Any]", given))
    if len(rules) > MAX_ESCALATIONS:
        raise InvalidField("escalate", f"has {len(rules)} rules of at most {MAX_ESCALATIONS}")
    checked: list[Escalate] = []
    for rule in rules:
        if not isinstance(rule, Escalate):
            raise InvalidField("escalate", f"an Escalate is needed, not {type(rule).__name__}")
        last = checked[-1].after if checked else timedelta()
        after = cast("Any", rule.after)
        if not isinstance(after, timedelta) or not last < after < timedelta(
            milliseconds=timeout_ms
        ):
            raise InvalidField("escalate", "needs rising times above 0 and before the timeout")
        to = names_of("escalate", rule.to)
        if rule.replace and len(to) < approvals:
            raise InvalidField("escalate", "replaces by fewer than the approvals that are needed")
        checked.append(Escalate(after, to, bool(rule.replace)))
    return tuple(checked)
