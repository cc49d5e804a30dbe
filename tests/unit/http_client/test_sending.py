"""What the stages of a request say of a broken rule of HTTP, by the side that notices it."""

from __future__ import annotations

import httpx
import pytest

from redis_state.http_client.requests.sending import Sending

_CONNECTED = ["connection.connect_tcp.started", "connection.connect_tcp.complete"]
_HEADERS = ["send_request_headers.started", "send_request_headers.complete"]
_BODY = ["send_request_body.started", "send_request_body.complete"]


@pytest.mark.parametrize("kind", ["http11", "http2"])
@pytest.mark.parametrize(
    ("stages", "maybe"),
    [
        # It cannot be written.
        ([_HEADERS[0], "send_request_headers.failed"], False),
        # It was written. An answer that breaks a rule ends in the same error.
        ([*_HEADERS, *_BODY, "receive_response_headers.started"], True),
        ([*_HEADERS, _BODY[0]], True),
    ],
)
async def test_a_local_error_of_the_protocol_says_not_sent_only_before_the_headers_were(
    kind: str, stages: list[str], *, maybe: bool
) -> None:
    sending = Sending(reports=True)
    trace = sending.begin()["trace"]
    for stage in _CONNECTED:
        await trace(stage, {})
    for stage in stages:
        await trace(f"{kind}.{stage}", {})
    assert sending.failed(httpx.LocalProtocolError("a rule")) is maybe
    # The next one begins again.
    trace = sending.begin()["trace"]
    await trace(f"{kind}.{_HEADERS[0]}", {})
    assert not sending.failed(httpx.LocalProtocolError("a rule"))
