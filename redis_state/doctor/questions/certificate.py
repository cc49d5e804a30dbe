"""The certificate of a server: when it expires."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from redis_state.doctor.finding import NotReported
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address


async def days_left(address: Address, *, timeout_s: float) -> float | None:
    """Connect once more, and return when the certificate expires. Errors: NotReported."""
    options = address.options
    if options.get("ssl_cert_reqs") == "none":
        return None
    name = options.get("ssl_server_name", options["host"])
    try:
        async with timeout(timeout_s):
            _, writer = await asyncio.open_connection(
                options["host"], options["port"], ssl=_context(options), server_hostname=name
            )
    except OSError as error:  # also of TLS, and of the deadline
        raise NotReported(f"the certificate cannot be read: {str(error) or 'no answer'}") from None
    try:
        certificate: Any = writer.get_extra_info("peercert")
    finally:
        writer.transport.abort()
    if not certificate:
        return None
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    return (datetime.fromtimestamp(ends, UTC) - datetime.now(UTC)).total_seconds() / 86_400


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authorities = options.get("ssl_ca_certs"), options.get("ssl_ca_data")
    if any(authorities):
        context.load_verify_locations(cafile=authorities[0], cadata=authorities[1])
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options["ssl_keyfile"])
    context.check_hostname = bool(options.get("ssl_check_hostname", True))
    return context
