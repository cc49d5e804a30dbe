"""What the client erases. The gateway does it, and its caller's name is in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from redis_state.http_client.requests.caller import Ask, GatewayCaller
from redis_state.http_client.tasks.paths import session_path
from redis_state.models.attributes import AttributeValue, check_attributes
from redis_state.models.erasure import ErasureReport


class HttpErasing:
    """The part of the client that erases sessions and users.

    An erasure is sent once, a dry run again if its connection breaks. Errors: OutcomeUnknown if it
    may have happened, or still happens. Repeat it: it does the rest, and reports that alone.
    """

    _caller: GatewayCaller

    async def forget(
        self,
        session_id: str,
        *,
        dry_run: bool = False,
        running: Literal["cancel", "refuse", "fence"] = "cancel",
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase a session. See `TaskClient.forget`. The caller needs ``admin`` over it.

        Tasks that run have 10 seconds to notice that they are cancelled.
        """
        path = session_path(session_id)
        query = [("dry_run", "true" if dry_run else "false"), ("running", running)]
        # An earlier gateway does not know it.
        query += [("leave_unset", "true")] if leave_unset else []
        ask = Ask("DELETE", path, query)
        return await self._erase(ask, dry_run=dry_run)

    async def forget_user(
        self,
        user: AttributeValue,
        *,
        attribute: str = "user",
        shared: bool = False,
        dry_run: bool = False,
        running: Literal["cancel", "refuse", "fence"] = "cancel",
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase the sessions of a user, and what is under the user's name.

        See `TaskClient.forget_user`. The caller needs ``admin`` over everything.
        """
        check_attributes("user", {attribute: user})
        body: dict[str, Any] = {"user": user, "attribute": attribute, "shared": shared}
        body |= {"dry_run": dry_run, "running": running}
        body |= {"leave_unset": True} if leave_unset else {}
        ask = Ask("POST", ("users", "forget"), body=body)
        return await self._erase(ask, dry_run=dry_run)

    async def _erase(self, ask: Ask, *, dry_run: bool) -> ErasureReport:
        ask = replace(ask, repeatable=dry_run, reads=dry_run)
        return _report(await self._caller.call(ask))


def _report(document: Mapping[str, Any]) -> ErasureReport:
    known = {each.name for each in fields(ErasureReport)}
    return ErasureReport(**{name: its for name, its in document.items() if name in known})
