"""Find a pause by what a caller presents: its token, or its public id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redis_state.errors import CorruptState, TokenUnknown
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.serialization.rows import as_object
from redis_state.store import RedisStateStore
from redis_state.transport.key_text import escape
from redis_state.transport.keys import is_pause_id


@dataclass(frozen=True, slots=True)
class FoundPause:
    """A pause as its token's hash has it: open, decided or overdue.

    ``votes``: it names who decides it, and takes a vote of each.
    """

    key: str
    session_id: str
    task_id: str
    entry: str
    is_open: bool
    votes: bool
    about: bytes | None = field(repr=False)
    form: bytes | None = field(repr=False)

    def schema(self, payloads: Payloads) -> dict[str, Any] | None:
        """Return the JSON schema of its form.

        Errors: CorruptState: it is not read as none; PayloadUnreadable.
        """
        if self.form is None:
            return None
        payloads.need_all(self.form, of=f"task {self.task_id!r}", field=f"form of {self.entry}")
        problem = "its form cannot be read"
        try:
            return payloads.as_object(self.form)
        except codec.DecodeError as error:
            problem = f"{problem}: {error.reason}"
        raise CorruptState(self.key, problem)


def token_key(store: RedisStateStore, token: str) -> str:
    """Return the key of a token, or of a pause's id. Errors: TokenUnknown if it is neither."""
    key = store.base.keys.session_token(token)
    if key is None:
        raise TokenUnknown(expired=False)
    return key


def token_key_of(store: RedisStateStore, session_id: str, digest: str) -> str:
    """Return the key of a token by its session and its digest, as a paused task's record has it.

    One of an earlier version has the key, whose last part is the digest.
    """
    return token_key(store, f"{escape('session_id', session_id)}:{digest.rpartition(':')[2]}")


def token_member(key: str) -> bytes:
    """Return what stands for a token among its session's tasks. Lua has it too."""
    return b"\xff" + key.rpartition(":")[2].encode()


async def tokens_of(store: RedisStateStore, session_id: str) -> list[str]:
    """Return the keys of the tokens that are listed among a session's tasks."""
    index = store.base.keys.tasks(session_id)
    found: list[bytes] = await store.transport.commands.zrange_up_to(
        index, "(0", offset=0, count=-1
    )
    slot = index.removesuffix("tasks")
    return [f"{slot}token:{member[1:].decode()}" for member in found]


async def find_pause(
    store: RedisStateStore,
    token: str,
    *,
    session_id: str | None = None,
    task_id: str | None = None,
) -> FoundPause:
    """Find a pause by its token; by its id only if it is revealed.

    It must belong to the session and the task, if they are given. Errors: TokenUnknown;
    CorruptState.
    """
    key = token_key(store, token)
    reply = store.transport.commands.hmget(key, "task", "state", "payload", "schema", "approvals")
    held = await store.base.scripts.read(reply, key, command="HMGET")
    owner, state, about, form, approvals = held
    if not owner:
        raise TokenUnknown(expired=False)
    try:
        session, task, entry = codec.decode(owner)
        revealed = not is_pause_id(token) or as_object(about or b"{}").get("revealed")
    except (ValueError, TypeError) as error:
        raise CorruptState(key, f"not a pause: {codec.reason_of(error)}") from None
    if session_id not in (None, session) or task_id not in (None, task):
        raise TokenUnknown(expired=False)
    if not revealed:
        raise TokenUnknown(expired=False)
    is_open, votes = state == b"open", approvals is not None
    return FoundPause(key, session, task, entry, is_open, votes, about, form)
