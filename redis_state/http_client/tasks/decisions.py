"""The decisions on pauses over HTTP: by their public ids, in the name of the caller."""

from __future__ import annotations

from typing import Any

from redis_state.errors import InvalidField, TokenUnknown
from redis_state.http_client.documents import read_pause
from redis_state.http_client.requests.caller import Ask, key_of
from redis_state.http_client.tasks.reading import HttpReading
from redis_state.models import TaskState
from redis_state.primitives.listed import behind_a_write
from redis_state.transport.keys import is_pause_id
from redis_state.worker import OpenPause, PausePage

_PAGE = 500


class HttpDecisions(HttpReading):
    """The part of the client that decides pauses."""

    async def approve(
        self,
        token: str,
        value: Any = None,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Approve a pause. See `resolve`."""
        return await self.resolve(
            token,
            approved=True,
            value=value,
            session_id=session_id,
            task_id=task_id,
            idempotency_key=idempotency_key,
        )

    async def reject(
        self,
        token: str,
        value: Any = None,
        *,
        session_id: str | None = None,
        task_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Reject a pause. See `resolve`."""
        return await self.resolve(
            token,
            approved=False,
            value=value,
            session_id=session_id,
            task_id=task_id,
            idempotency_key=idempotency_key,
        )

    async def resolve(
        self,
        token: str,
        *,
        approved: bool,
        value: Any = None,
        session_id: str | None = None,
        task_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskState | None:
        """Decide a pause, as the caller. See `TaskClient.resolve`.

        ``token`` is the pause's public id: a gateway takes no tokens, and none is sent. Return the
        task, or None if the caller may not read it. Whose pause it is costs a call, if the session
        or the task is given.

        Errors: TokenResolved for everybody after the first: by whom, when and how; those of
        `TaskClient.resolve`.
        """
        await self._check_owner(token, session_id, task_id)
        body = {"approved": approved} | ({} if value is None else {"value": value})
        decided = await self._caller.call(
            Ask(
                "POST",
                (*_pause(token), "decision"),
                body=body,
                key=key_of("idempotency_key", idempotency_key),
                missing=_unknown,
            )
        )
        task = decided["task"]
        if task is None:
            return None
        with behind_a_write(self._caller.address):
            return await self.get(task["session_id"], task["task_id"])

    async def pauses(
        self, session_id: str | None = None, *, tag: str | None = None, mine: bool = False
    ) -> list[OpenPause]:
        """List the open pauses that the caller sees, the oldest first.

        ``mine`` lists those that the caller may decide now.
        """
        found: list[OpenPause] = []
        cursor: str | None = None
        while True:
            page = await self.list_pauses(session_id, tag=tag, mine=mine, limit=_PAGE, after=cursor)
            found += page.pauses
            cursor = page.cursor
            if cursor is None:
                return found

    async def list_pauses(
        self,
        session_id: str | None = None,
        *,
        tag: str | None = None,
        mine: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> PausePage:
        """Return a page of the open pauses that the caller sees. See `TaskClient.list_pauses`."""
        query = [("limit", str(limit))]
        query += [] if session_id is None else [("session_id", session_id)]
        query += [] if tag is None else [("tag", tag)]
        query += [("mine", "true")] if mine else []
        query += [] if after is None else [("after", after)]
        page = await self._caller.call(Ask("GET", ("pauses",), query))
        return PausePage([*map(read_pause, page["pauses"])], page["cursor"])

    async def pause(self, token: str) -> OpenPause | None:
        """Return the open pause of a public id, or None."""
        found = await self._caller.call(Ask("GET", _pause(token), missing=None))
        return None if found is None or found["state"] != "open" else read_pause(found)

    async def delegate(
        self, token: str, to: str, *, session_id: str | None = None, task_id: str | None = None
    ) -> None:
        """Hand the caller's vote on a pause to another actor. See `TaskClient.delegate`."""
        await self._check_owner(token, session_id, task_id)
        ask = Ask("POST", (*_pause(token), "delegate"), body={"to": to}, missing=_unknown)
        await self._caller.call(ask)

    async def _check_owner(self, token: str, session_id: str | None, task_id: str | None) -> None:
        """Raise TokenUnknown unless a pause belongs to the session and the task."""
        if session_id is None and task_id is None:
            return
        found = await self._caller.call(Ask("GET", _pause(token), missing=None))
        if found is None or not (
            session_id in (None, found["session_id"]) and task_id in (None, found["task_id"])
        ):
            raise _unknown()


def _pause(token: str) -> tuple[str, str]:
    """Return a pause's part of a path. What decides by itself stays here: paths are logged."""
    if not is_pause_id(token):
        raise InvalidField("token", "a pause's public id is needed")
    return "pauses", token


def _unknown() -> TokenUnknown:
    return TokenUnknown(expired=False)
