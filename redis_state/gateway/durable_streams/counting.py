"""How many durable streams a caller keeps: counted around what creates and what deletes one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.calls import ApiCall
from redis_state.stores.streams.created import CreatedStreams


@dataclass(slots=True)
class Creation:
    """What a block has done: whether there is a new stream."""

    is_new: bool = False


@asynccontextmanager
async def counted(call: ApiCall, path: str) -> AsyncGenerator[Creation]:
    """Create a stream in the block. Errors: HttpProblem, 403, if the caller keeps too many."""
    creation, created = Creation(), _created(call)
    if created is None:
        yield creation
        return
    mark: str | None = None
    # What is there already takes no more room, and is answered as such.
    if await call.store.streams.find(path) is None:
        mark = await created.claim(path)
        if mark is None:
            most = call.services.usage.limits.kept_streams
            message = f"at most {most} streams of a caller may be kept: delete one"
            raise HttpProblem(403, "too_many_kept_streams", message, facts={"limit": most})
    try:
        yield creation
    finally:
        if creation.is_new:
            await created.made(path)
        elif mark is not None:
            await created.release(path, mark)


@asynccontextmanager
async def uncounted(call: ApiCall, path: str) -> AsyncGenerator[None]:
    """Delete a stream in the block."""
    created = _created(call)
    if created is None:
        yield
        return
    async with created.deleting(path):
        yield


def _created(call: ApiCall) -> CreatedStreams | None:
    most = call.services.usage.limits.kept_streams
    if most is None:
        return None
    return call.store.streams.created_by(call.principal.subject, most=most)
