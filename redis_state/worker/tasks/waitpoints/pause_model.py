"""What a pause is, without any I/O: what it asks, its token, its notes, its decision.

A token is made from the task's secret and the pause's entry in the journal. So a later run gets
the same one, and no text of it has to be stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, cast

from redis_state import limits
from redis_state.errors import InvalidDecision, InvalidField, PauseTimeout
from redis_state.models import StateUpdate, TaskState, UpdateType
from redis_state.scripts import raw
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.serialization.rows import as_object
from redis_state.serialization.sealed import Sealed
from redis_state.settings import Settings
from redis_state.stores.base import ms
from redis_state.transport.key_text import escape
from redis_state.transport.keys import pause_id_of
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.waitpoints.ballots import (
    Ballot,
    BallotOptions,
    Vote,
    vote_from,
    votes_of,
)
from redis_state.worker.tasks.waitpoints.forms import PauseForm, form_value

OnTimeout = Literal["fail", "reject", "resume"]

# A decision that nobody made: by whom, and under which claim of all who find it overdue.
BY_TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Decision:
    """How a pause was decided: whether approved, with which value, by whom.

    ``timed_out``: nobody decided in time, and the pause's policy did. ``votes``: of a pause that
    names who decides it, the first first. Then value and actor are those of the deciding vote.
    """

    approved: bool
    value: Any
    actor: str
    timed_out: bool = False
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """An open pause. The holder of the ``token`` decides it."""

    name: str
    token: str = field(repr=False)

    @property
    def pause_id(self) -> str | None:
        """Its name for everybody to see: who knows it can decide only with a store at hand."""
        return pause_id_of(self.token)


class PauseOptions(BallotOptions, total=False):
    """What every pause may be given: see `TaskContext.open_pause`."""

    name: str | None
    timeout: timedelta | None
    on_timeout: OnTimeout
    default: Any
    tags: Sequence[str]
    key: str | None
    schema: Any


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """What a pause asks, and what becomes of it if nobody answers."""

    name: str
    reason: str
    payload: Any = field(repr=False)
    tags: Sequence[str]
    timeout_ms: int
    on_timeout: OnTimeout
    default: Any = field(repr=False)
    reveal: bool
    form: PauseForm | None = None
    ballot: Ballot | None = None
    # It waits for time: nobody is asked, so nobody finds it, and its deadline alone decides it.
    timer: bool = False

    @classmethod
    def read(
        cls,
        settings: Settings,
        reason: str,
        payload: Any,
        options: PauseOptions,
        *,
        reveal: bool,
        timer: bool = False,
    ) -> PauseRequest:
        """Check what a handler asks. Errors: InvalidField names what cannot be used."""
        limits.known_options(PauseOptions, options)
        name = options.get("name")
        _check_texts({"reason": reason, "name": name, "key": options.get("key")})
        on_timeout = _on_timeout(options)
        form = _form(options)
        default = _default(options, form)
        timeout_ms = _timeout_ms(settings.task_pause_ttl, settings.active_task_ttl, options)
        return cls(
            name=reason if name is None else name,
            reason=reason,
            payload=codec.plain(payload),
            tags=_tags(options.get("tags", ())),
            timeout_ms=timeout_ms,
            on_timeout=on_timeout,
            default=default,
            reveal=reveal and not timer,
            form=form,
            ballot=Ballot.read(options, timeout_ms=timeout_ms),
            timer=timer,
        )

    def policy(self) -> dict[str, Any]:
        """Return what happens at its deadline, as it is stored: nothing says that it fails."""
        if self.on_timeout == "fail":
            return {}
        policy: dict[str, Any] = {"on_timeout": self.on_timeout}
        return policy if self.default is None else policy | {"default": self.default}

    def token_fields(self, payloads: Payloads) -> dict[bytes, bytes]:
        """Return what its token has beside what every pause's has."""
        form = {} if self.form is None else {b"schema": payloads.write(self.form.schema)}
        form |= {b"timer": b"1"} if self.timer else {}
        return form | ({} if self.ballot is None else self.ballot.fields())

    def report(self) -> dict[str, Any]:
        """Return what its update says beside what every pause's says."""
        form = {} if self.form is None else {"schema": self.form.schema}
        return form | ({} if self.ballot is None else self.ballot.report())


def check_pause_options(field: str, options: Mapping[str, Any]) -> None:
    """Check what can be checked of a pause's options before there is a task.

    How long its task may live is checked when it is opened. Errors: InvalidField.
    """
    known = PauseOptions.__optional_keys__ | PauseOptions.__required_keys__
    if unknown := options.keys() - known:
        found = f"{min(unknown, key=str)!r} is no option of a pause: {', '.join(sorted(known))}"
        raise InvalidField(field, found)
    given = cast("PauseOptions", options)
    _check_texts({name: options.get(name) for name in ("name", "key")})
    _on_timeout(given)
    _default(given, _form(given))
    _tags(given.get("tags", ()))
    longest = timedelta(seconds=limits.LONGEST_S)
    Ballot.read(given, timeout_ms=_timeout_ms(longest, longest, given))


def notice(state: TaskState, content: dict[str, Any]) -> StateUpdate:
    """Make the update of a pause's decision, or of a part of it."""
    return StateUpdate(
        session_id=state.session_id,
        task_id=state.task_id,
        trace_id=state.trace_id,
        update_type=UpdateType.NOTIFICATION,
        content=content,
    )


def asks(reason: str, payload: Any) -> str:
    """Return what distinguishes a pause from others, as its journal entry keeps it."""
    return codec.fingerprint("asks", reason, payload)


def asks_of(payloads: Payloads, about: bytes | None) -> str | None:
    """Return what a pause asks from what its token says; None if that cannot be read."""
    with suppress(codec.DecodeError, KeyError):
        reported = payloads.as_object(about or b"")
        if any(type(reported[name]) is Sealed for name in ("reason", "payload")):
            return None
        return asks(reported["reason"], reported["payload"])
    return None


def number_of(about: bytes | None) -> int | None:
    """Return the number of the call that opened a pause, see `CallOrder`, from its token."""
    with suppress(codec.DecodeError, KeyError):
        number = as_object(about or b"").get("number")
        return number if isinstance(number, int) else None
    return None


def place_of(about: bytes | None) -> int:
    """Return how far a pause's handler had come, by what its token says; 0 if it does not."""
    with suppress(codec.DecodeError, ValueError, TypeError):
        return int(as_object(about or b"").get("place", 0))
    return 0


def pause_token(started: StartedRun, entry: str) -> str:
    """Make the token of a task's pause: 192 bits, after its session's part of the key."""
    return token_of(started.state.session_id, started.secret, entry)


def token_of(session_id: str, secret: str, entry: str) -> str:
    """Make a pause's token from its task's secret."""
    mark = hmac.digest(secret.encode(), raw(entry), hashlib.sha256)[:24]
    return f"{escape('session_id', session_id)}.{base64.urlsafe_b64encode(mark).decode()}"


def entry_name(entry: str) -> str:
    """Return a journal's entry without its kind and number: a name, or a pause's key."""
    return entry.partition(":")[2].rpartition("#")[0]


def name_of(entry: str, about: bytes | None) -> str:
    """Return a pause's name from what its token says; from its entry if that cannot be read."""
    with suppress(codec.DecodeError, KeyError):
        return str(as_object(about or b"")["name"])
    return entry_name(entry)


def pause_name(entry: str, note: Mapping[str, Any]) -> str:
    """Return a pause's name from its note; from its entry if that has none."""
    return str(note.get("name", entry_name(entry)))


def decision_of(entry: str, note: dict[str, Any], form: PauseForm | None = None) -> Decision:
    """Read a decided pause's note, and an approval's value as its form says.

    Errors: PauseTimeout if its policy is to fail; InvalidDecision if the value breaks a rule of the
    form's type that no schema says.
    """
    policy = note.get("timed_out")
    if policy == "fail":
        raise PauseTimeout(pause_name(entry, note))

    def typed(decided: Mapping[str, Any]) -> Any:
        fits = form is not None and decided["approved"]
        return form.typed(decided["value"]) if form and fits else decided["value"]

    votes = tuple(vote_from(at_ms, vote, typed(vote)) for at_ms, vote in votes_of(note))
    actor, late = str(note["actor"]), policy is not None
    return Decision(bool(note["approved"]), typed(note), actor, late, votes)


def decided_entry(decision: dict[str, Any], *, actor: str) -> dict[str, Any]:
    """Write a decision as the journal keeps it."""
    return {"state": "decided", **decision, "actor": actor}


def policy_of(note: dict[str, Any]) -> dict[str, Any]:
    """Decide as a pause's policy says. One whose note is lost fails."""
    policy = note.get("on_timeout", "fail")
    return {"approved": policy == "resume", "value": note.get("default"), "timed_out": policy}


def _form(options: PauseOptions) -> PauseForm | None:
    given = options.get("schema")
    return None if given is None else PauseForm.read(given)


def _check_texts(given: Mapping[str, object]) -> None:
    for label, text in given.items():
        if not isinstance(text, str | None):
            raise InvalidField(label, f"text is needed, not {type(text).__name__}")


def _on_timeout(options: PauseOptions) -> OnTimeout:
    on_timeout = options.get("on_timeout", "fail")
    if on_timeout not in ("fail", "reject", "resume"):
        raise InvalidField("on_timeout", "needs fail, reject or resume")
    if "default" in options and on_timeout != "resume":
        raise InvalidField("default", "needs on_timeout='resume'")
    return on_timeout


def _default(options: PauseOptions, form: PauseForm | None) -> Any:
    given = options.get("default")
    if form is None:
        return codec.plain(given)
    default = form_value(given)
    if options.get("on_timeout") == "resume":
        try:
            form.typed(default)
        except InvalidDecision as error:
            raise InvalidField(
                "default", f"does not fit the schema: {error.path}: {error.rule}"
            ) from None
    return default


def _tags(tags: Sequence[str]) -> list[str]:
    given = cast("Sequence[object]", tags)
    if isinstance(given, str) or not all(isinstance(tag, str) for tag in given):
        raise InvalidField("tags", "a list of texts is needed")
    return list(tags)


def _timeout_ms(usual: timedelta, longest: timedelta, options: PauseOptions) -> int:
    timeout = options.get("timeout")
    if timeout is None:
        return ms(min(usual, longest))
    if not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("timeout", f"a timedelta is needed, not {type(timeout).__name__}")
    if not timedelta() < timeout <= longest:
        raise InvalidField("timeout", "needs to be above 0 and at most active_task_ttl")
    return ms(timeout)
