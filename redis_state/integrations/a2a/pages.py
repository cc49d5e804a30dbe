"""Page tokens: a place in a list, signed for the owner and the filter that it was given to.

A token says after which place to go on, so it survives that the task there is changed or deleted.
The secret is made once per namespace and shared by all servers; unused for 30 days it is dropped,
and tokens of before are refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from functools import partial

from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import validate_page_size

from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import task_of
from redis_state.stores.a2a_versions import ListRequest, is_place

_SECRET_TTL_MS = 30 * 24 * 3600 * 1000
_MAC_BYTES = 16
_LONGEST = 4096


async def list_page(backend: A2ABackend, params: ListTasksRequest, scope: str) -> ListTasksResponse:
    """Read a page of a scope. Errors: InvalidParamsError for a page token or size that is wrong."""
    if params.page_size:
        validate_page_size(params.page_size)
    since = params.HasField("status_timestamp_after")
    asked = ListRequest(
        context=params.context_id or None,
        state=str(int(params.status)) if params.status else None,
        since_ns=params.status_timestamp_after.ToNanoseconds() if since else None,
        size=params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE,
    )
    if params.page_token:
        place = await _open(backend, params.page_token, scope, asked)
        asked = ListRequest(asked.context, asked.state, asked.since_ns, place, asked.size)
    backend.owner.begin()
    page = await backend.tasks.list(scope, asked)
    read = (
        backend.store.base.attempt(scope, "a2a task", body, partial(task_of, body))
        for body in page.bodies
    )
    return ListTasksResponse(
        tasks=[task for task in read if task is not None],
        next_page_token=await _seal(backend, page.after, scope, asked) if page.after else "",
        page_size=asked.size,
        total_size=page.total,
    )


async def _seal(backend: A2ABackend, place: str, scope: str, asked: ListRequest) -> str:
    data = place.encode()
    mac = _mac(await _secret(backend), data, scope, asked)
    return base64.urlsafe_b64encode(mac + data).decode().rstrip("=")


async def _open(backend: A2ABackend, token: str, scope: str, asked: ListRequest) -> str:
    refused = InvalidParamsError("page_token: not one of this list, or too old")
    if len(token) > _LONGEST:
        raise refused
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        place = sealed[_MAC_BYTES:].decode()
    except (binascii.Error, ValueError):
        raise refused from None
    mac = _mac(await _secret(backend), sealed[_MAC_BYTES:], scope, asked)
    if not hmac.compare_digest(mac, sealed[:_MAC_BYTES]) or not is_place(place):
        raise refused
    return place


def _mac(secret: bytes, place: bytes, scope: str, asked: ListRequest) -> bytes:
    """Sign a place together with what was asked for: a token leads on in its own list only."""
    about = [scope, asked.context, asked.state, asked.since_ns]
    message = repr(about).encode("utf-8", "surrogatepass") + b"\0" + place
    return hmac.digest(secret, message, "sha256")[:_MAC_BYTES]


async def _secret(backend: A2ABackend) -> bytes:
    commands = backend.store.transport.commands
    key = backend.store.base.keys.a2a_page_secret()
    made = secrets.token_bytes(32)
    # The first of them stands; reading it prolongs its life.
    await commands.set_if_absent(key, made, _SECRET_TTL_MS)
    found: bytes = await commands.get_and_renew(key, _SECRET_TTL_MS)
    return found
