"""The route of durable streams: all below ``/v1/stream/``, slashes of the path included."""

from __future__ import annotations

from starlette.routing import Match
from starlette.types import Scope

from redis_state.gateway.calls import Desk, RawRoute
from redis_state.gateway.durable_streams.operations import OPERATIONS
from redis_state.gateway.durable_streams.requests import ROOT
from redis_state.gateway.requests.paths import read_parts


class StreamRoute(RawRoute):
    """All durable streams."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, OPERATIONS[0].path, OPERATIONS)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare the beginning of a request's path, and its method."""
        parts = read_parts(scope) if scope["type"] == "http" else None
        if parts is None or len(parts) <= len(ROOT) or tuple(parts[: len(ROOT)]) != ROOT:
            return Match.NONE, {}
        return Match.FULL if scope["method"] in self.operations else Match.PARTIAL, {}
